"""What claims can't serve exactly is refused by name on all ranks; what needs none keeps its loop of two levels."""

from typing import Any

import pytest
from epochs import Numbers
from random_manager import ScriptedManager
from ranks import outcomes, run
from test_claims_broken import forward, numbers, text
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.errors import ConfigError, UnsupportedError

# --- what is refused, what is left alone


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(100))


def refused(rank: int, name: str) -> None:
    options: dict[str, Any] = {"claims": True}
    ddp = DistributedDataParallel(nn.Linear(1, 1), static_graph=name == "static_graph")
    loader = numbers(rank)
    if name == "hook":
        ddp.register_comm_hook(None, allreduce_hook)
    if name == "stream":
        loader = DataLoader(Endless(), 8)
    if name == "whole_batches":
        loader, options["chunks"] = numbers(rank, workers=1), "off"
    if name == "unknown":
        options["claims"] = "sometimes"
    if name == "unlike":
        options["claims"] = rank == 0
    balance(ddp, loader, **options)


REFUSALS = {
    "static_graph": "static_graph",
    "hook": "communication hook",
    "stream": "IterableDataset",
    "whole_batches": "chunks='auto'",
    "unknown": "known: False, True, 'auto'",
    "unlike": "give every rank the same claims",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_what_works_on_all_ranks(name: str) -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, refused, name, env=manager.env)
    for one in ended:
        assert REFUSALS[name] in text(one), text(one)
        assert text(one).startswith((ConfigError.__name__, UnsupportedError.__name__))


def left_alone(rank: int, world_size: int) -> int:
    data = Numbers(32)
    ddp = DistributedDataParallel(nn.Linear(1, 1))
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, world_size, rank))
    model, batches = balance(ddp, loader, claims=True)
    assert batches.batch_size == 8
    count = 0
    for chunks in batches:
        for batch in chunks:
            forward(model, batch).backward()
            count += len(batch)
    return count


def test_one_rank_only_and_disabled_jobs_keep_the_loop_of_two_levels() -> None:
    assert run(1, left_alone, 1) == [32]
    assert run(2, left_alone, 2, env={"LBBSP_DISABLE": "1"}) == [16, 16]
