"""Chunks fetched ahead: each sample once, sizes act at once, batches as the stock loader's, memory bounded."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from random_manager import ScriptedManager
from ranks import outcomes, run
from test_exact_gradient import RELATIVE, alone, balanced, worst
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance, chunks

LOCAL_BATCH = 8


class Pair(NamedTuple):
    number: int
    share: float


class Things(Dataset[Any]):
    """Samples of all that the default collate function knows; counts what loader workers fetch."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.fetched = torch.zeros(64, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if (worker := get_worker_info()) is not None:
            self.fetched[worker.id] += 1
        return {
            "index": index,
            "x": torch.full((2, 3), float(index)),
            "name": f"sample {index}",
            "pair": Pair(index, index / 3),
            "more": [np.array([index], dtype=np.int16), {"deep": (index, [b"b", "s"])}],
        }


def ragged(samples: list[Any]) -> dict[str, Any]:
    """A collate function of the user's own: what it makes can't be joined along a dimension."""
    return {"index": [sample["index"] for sample in samples], "total": sum(sample["index"] for sample in samples)}


def sleepy(samples: list[Any]) -> dict[str, Any]:
    time.sleep(0.01 * len(samples))
    return ragged(samples)


@dataclass(frozen=True)
class Plan:
    """What to walk over, and how."""

    samples: int = 250
    workers: tuple[int, ...] = (2, 2)
    epochs: int = 2
    collate: Any = None
    chunks: str = "on"
    stops: tuple[int, ...] = ()
    """Draws after which to save and load, in each epoch."""
    options: dict[str, Any] = field(default_factory=lambda: {"min_samples": 0})
    loader: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """What one rank saw."""

    draws: list[list[int]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    depth: int = 0
    chunked: bool = False


def walk(rank: int, plan: Plan) -> Seen:
    data, ranks = Things(plan.samples), len(plan.workers)
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(
        data, LOCAL_BATCH, sampler=sampler, num_workers=plan.workers[rank], collate_fn=plan.collate, **plan.loader
    )
    model, batches = balance(DistributedDataParallel(torch.nn.Linear(1, 1)), loader, chunks=plan.chunks, **plan.options)
    seen = Seen(depth=chunks.depth(loader), chunked=batches.balancer.terms.chunks)
    for epoch in range(plan.epochs):
        sampler.set_epoch(epoch)
        for stop in (*plan.stops, None):
            iterator = iter(batches)
            for done, batch in enumerate(iterator, 1):
                note(seen, data, iterator, batch, plan)
                model(torch.ones(max(1, seen.sizes[-1][rank]), 1)).mean().backward()
                if done == stop:
                    break
            if stop is not None:
                batches.load_state_dict(batches.state_dict())
    batches.balancer.close()
    return seen


def note(seen: Seen, data: Things, iterator: Any, batch: Any, plan: Plan) -> None:
    """Keep what a draw brought; check it against the stock collate function."""
    indices = [int(index) for index in batch["index"]]
    if plan.collate is None and indices:
        same(batch, default_collate([data[index] for index in indices]))
    elif plan.collate is not None:
        assert batch["total"] == sum(indices) or not indices
    cursor = iterator._cursor
    seen.draws.append(indices)
    seen.sizes.append(cursor.in_force.sizes.tolist())
    if seen.chunked:
        drawn = sum(map(len, seen.draws))
        seen.held.append(int(data.fetched.sum()) - (drawn - cursor.fetched_late + cursor.fetched_in_vain))


def same(ours: Any, theirs: Any) -> None:
    """Alike in structure, types, dtypes and values."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert ours == theirs


def play(plan: Plan) -> list[Seen]:
    with ScriptedManager(seed=3) as manager:
        return run(len(plan.workers), walk, plan, env=manager.env)


CASES = {
    "default_collate": Plan(),
    "unequal_workers": Plan(workers=(0, 3, 1)),
    "own_collate": Plan(workers=(2, 0), collate=ragged),
    "resumed": Plan(workers=(1, 2), stops=(3, 1, 4)),
    "resumed_own_collate": Plan(workers=(2, 1), stops=(2, 2), collate=ragged),
    "persistent": Plan(loader={"persistent_workers": True, "prefetch_factor": 5}),
    "bounded": Plan(options={"min_samples": 3, "max_samples": 12}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sample_once_an_epoch_and_sizes_act_at_once(name: str) -> None:
    plan = CASES[name]
    ranks, batch = play(plan), LOCAL_BATCH * len(plan.workers)
    per_epoch = -(-plan.samples // batch)
    assert all(seen.chunked for seen in ranks)
    assert {len(seen.draws) for seen in ranks} == {plan.epochs * per_epoch}
    for seen in ranks:
        assert seen.sizes == ranks[0].sizes, "the ranks follow different plans"
    for epoch in range(plan.epochs):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(plan.samples, generator=generator).tolist()
        for draw in range(per_epoch):
            parts = [seen.draws[epoch * per_epoch + draw] for seen in ranks]
            together = sorted(index for part in parts for index in part)
            assert together == sorted(order[draw * batch : draw * batch + batch])
            if len(together) == batch:
                assert [len(part) for part in parts] == ranks[0].sizes[epoch * per_epoch + draw]
    assert len({tuple(sizes) for sizes in ranks[0].sizes}) > 5, "the plan hardly changed"


@pytest.mark.parametrize("workers", [(1, 1), (4, 2)])
def test_no_more_is_held_than_depth_and_one_iterations(workers: tuple[int, int]) -> None:
    """Of parts of at most 12 samples; what loader workers fetched and no draw has taken or dropped."""
    most = 12
    plan = Plan(16 * 25, workers, epochs=1, options={"min_samples": 4, "max_samples": most})
    for seen in play(plan):
        assert max(seen.held) <= (seen.depth + 1) * most
        assert min(seen.held) >= 0
        assert max(seen.held) > 0


def test_a_slow_collate_function_of_the_users_own_means_whole_batches_and_says_so() -> None:
    plan = Plan(samples=60, epochs=1, collate=sleepy, chunks="auto")
    with ScriptedManager() as manager:
        ended = outcomes(2, walk, plan, env=manager.env)
    for one in ended:
        assert one.error is None, one.trace
        assert not one.value.chunked
        assert any("whole batches are fetched ahead and sizes act 4 iterations later" in line for line in one.log)


def test_one_rank_that_cannot_chunk_decides_for_all() -> None:
    plan = Plan(samples=60, epochs=1, workers=(2, 0), collate=sleepy, chunks="auto")
    assert [seen.chunked for seen in play(plan)] == [False, False]


def test_whole_batches_are_weighed_exactly_where_the_plan_changes_within_a_window() -> None:
    """Sizes of batches fetched ahead change from draw to draw, also under no_sync."""
    name, dtype = "accumulated_whole_batches", torch.float64
    with ScriptedManager(seed=1) as manager:
        ranks = run(2, balanced, name, 2, dtype, env=manager.env)
    for rank in ranks:
        assert worst(rank["gradients"], alone(name, 2, dtype, rank["epochs"])["gradients"]) <= RELATIVE[dtype]
    draws = -(-206 // 16)
    windows = [ranks[0]["sizes"][at : at + 3] for at in range(0, draws - 3, 3)]
    assert any(len(set(window)) > 1 for window in windows), windows
