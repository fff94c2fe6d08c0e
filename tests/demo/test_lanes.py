import itertools

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lbbsp.demo.lanes import Slices

SAMPLES, BATCH = 8 * 64 + 13, 64


def global_batches(sizes, seed=3, count=20):
    ranks = [itertools.islice(Slices(SAMPLES, seed, rank, sizes), count) for rank in range(len(sizes))]
    return [sorted(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("sizes", [(32, 32), (40, 24), (63, 1), (64, 0)])
def test_every_forced_split_sees_the_global_batches_of_a_stock_sampler(sizes):
    data = TensorDataset(torch.arange(SAMPLES))
    samplers = [DistributedSampler(data, 2, rank, seed=3, drop_last=True) for rank in range(2)]
    loaders = [DataLoader(data, batch_size=BATCH // 2, sampler=sampler, drop_last=True) for sampler in samplers]
    stock = []
    for epoch in range(3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        stock += [sorted(torch.cat([a[0], b[0]]).tolist()) for a, b in zip(*loaders, strict=True)]
    assert global_batches(sizes) == stock[:20]


def test_sizes_set_between_draws_act_at_the_next_one():
    slices = Slices(SAMPLES, 3, 0, (32, 32))
    batches = iter(slices)
    assert len(next(batches)) == 32
    slices.sizes = (48, 16)
    assert len(next(batches)) == 48
