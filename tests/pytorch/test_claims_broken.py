"""Loops that claim and go wrong: told by name, hanging nobody, moving no parameter by what was not averaged."""

import contextlib
import random
import time
from typing import Any

import pytest
import torch
from epochs import Numbers
from random_manager import ScriptedManager
from ranks import Outcome, outcomes, run
from test_claims import Walk, check_epochs, merged
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.core.parts import WHOLE_PPM
from lbbsp.errors import UnsupportedError

PEER_GONE = ("RuntimeError", "DistBackendError", "DistNetworkError", "died")


def text(outcome: Outcome) -> str:
    return str(outcome.error)


def numbers(rank: int, samples: int = 400, workers: int = 0) -> Any:
    data = Numbers(samples)
    return DataLoader(data, 8, sampler=DistributedSampler(data, 2, rank, shuffle=False), num_workers=workers)


def forward(model: Any, batch: Any) -> Any:
    return model(batch.float().reshape(-1, 1)).mean()


def claimed_first(walk: Walk, chunks: Any, least: int = 2) -> int:
    """Work an iteration's first micro-batches; how many there were."""
    count = 0
    for batch in chunks:
        forward(walk.model, batch).backward()
        count += 1
        if count == least:
            break
    return count


def due(walk: Walk, draw: int, first: int) -> bool:
    """Whether this draw, from `first` on, claims: a plan may be late. The same on all ranks."""
    return draw >= first and walk.loader.balancer.follower.in_force.beta_ppm < WHOLE_PPM


def let_claim(rank: int, number: int) -> None:
    """Rank 0 comes late to its first micro-batch, so that rank 1 has claimed before."""
    if rank == 0 and number == 0:
        time.sleep(0.3)


# --- loops that are not of two levels


def _unpacked(model: Any, loader: Any) -> None:
    for x, y in loader:
        forward(model, x + y).backward()


def _given_whole(model: Any, loader: Any) -> None:
    for batch in loader:
        model(batch).sum().backward()


def _by_key(model: Any, loader: Any) -> None:
    for batch in loader:
        forward(model, batch["x"]).backward()


def _moved(model: Any, loader: Any) -> None:
    for batch in loader:
        forward(model, batch.to("cpu")).backward()


def _listed(model: Any, loader: Any) -> None:
    for chunks in loader:
        for batch in list(chunks):
            forward(model, batch).backward()


def _one_late(model: Any, loader: Any) -> None:
    for chunks in loader:
        sum(forward(model, batch) for batch in chunks).backward()


def _one_skipped(model: Any, loader: Any) -> None:
    for iteration, chunks in enumerate(loader):
        for number, batch in enumerate(chunks):
            if iteration >= 5 and number == 1:
                continue
            forward(model, batch).backward()


LOOPS = {
    "unpacked": _unpacked,
    "given_whole": _given_whole,
    "by_key": _by_key,
    "moved": _moved,
    "listed": _listed,
    "one_late": _one_late,
    "one_skipped": _one_skipped,
}


def loop(rank: int, name: str) -> None:
    model, loader = balance(DistributedDataParallel(nn.Linear(1, 1)), numbers(rank), claims=True)
    LOOPS[name](model, loader)


@pytest.mark.parametrize("name", LOOPS)
def test_other_loops_are_told_what_to_change(name: str) -> None:
    with ScriptedManager(beta=0.3) as manager:
        ended = outcomes(2, loop, name, env=manager.env)
    texts = [text(one) for one in ended]
    assert any(one.startswith("UnsupportedError") and "for chunks in loader" in one for one in texts), texts
    assert all(one.startswith(("UnsupportedError", *PEER_GONE)) for one in texts), texts


# --- loops that leave an iteration


def leaves(rank: int, how: str) -> tuple[list[float], str]:
    """Rank 1 leaves an iteration after two micro-batches; what it has of parameters before and after its step."""
    walk = Walk(rank, 2, 0, 400)
    optimizer = torch.optim.SGD(walk.model.parameters(), lr=0.1)
    before: list[float] = []
    try:
        for draw, chunks in enumerate(walk.loader):
            if due(walk, draw, 6) and rank == 1:
                before = [float(p.detach().clone()) for p in walk.model.parameters()]
                _leave(walk, chunks, how)
                optimizer.step()
                before += [float(p) for p in walk.model.parameters()]
                continue
            for number, batch in enumerate(chunks):
                if due(walk, draw, 6):
                    let_claim(rank, number)
                forward(walk.model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    except (UnsupportedError, RuntimeError) as error:
        if rank == 0:
            raise
        return before, f"{type(error).__name__}: {error}"
    return before, "ended well"


def _leave(walk: Walk, chunks: Any, how: str) -> None:
    if how == "break":
        claimed_first(walk, chunks)
        return
    try:
        for number, batch in enumerate(chunks):
            if number == 2:
                raise LookupError("a broken sample")
            forward(walk.model, batch).backward()
    except LookupError:
        pass


@pytest.mark.parametrize("how", ["break", "exception"])
def test_an_iteration_that_was_broken_off_moves_nothing_and_is_told(how: str) -> None:
    with ScriptedManager(beta=0.2) as manager:
        ended = outcomes(2, leaves, how, env=manager.env)
    values, told = ended[1].value
    assert "UnsupportedError: the loop left an iteration before its last micro-batch" in told
    assert text(ended[0]).startswith(PEER_GONE)
    if how == "break":
        assert len(values) == 4
        assert values[:2] == values[2:]


def raising(rank: int) -> None:
    walk = Walk(rank, 2, 0, 400)
    for draw, chunks in enumerate(walk.loader):
        for number, batch in enumerate(chunks):
            if due(walk, draw, 6):
                let_claim(rank, number)
            if due(walk, draw, 6) and (rank, number) == (1, 1):
                raise LookupError("a broken sample")
            forward(walk.model, batch).backward()


def test_an_exception_in_a_micro_batch_is_the_users_own_and_hangs_nobody() -> None:
    with ScriptedManager(beta=0.2) as manager:
        ended = outcomes(2, raising, env=manager.env)
    assert text(ended[1]) == "LookupError: a broken sample"
    assert text(ended[0]).startswith(PEER_GONE)


def peeks(rank: int) -> Any:
    """Rank 1 looks into the loader before each epoch, and what it looked at lives on."""
    walk, kept = Walk(rank, 2, 0, 206), []
    for number in range(2):
        walk.sampler.set_epoch(number)
        if rank == 1:
            kept.append(iter(next(iter(walk.loader))))
            next(kept[-1])
        walk.epoch(number)
    assert len(kept) == 2 * rank
    return walk.seen


def test_a_look_into_the_loader_on_one_rank_takes_nothing() -> None:
    with ScriptedManager(seed=2) as manager:
        ranks = run(2, peeks, env=manager.env)
    check_epochs(merged(ranks), 206, 16, 2)


# --- buffers


def buffers(rank: int) -> tuple[list[Any], list[int]]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    model, loader = balance(ddp, numbers(rank, 206), claims=True)
    held, sizes = [], []
    for chunks in loader:
        for batch in chunks:
            sizes.append(len(batch))
            forward(model, batch).backward()
        held.append([buffer.tolist() for buffer in ddp.module.buffers()])
    loader.balancer.close()
    return held, sizes


def test_buffers_are_alike_after_each_iteration_that_claims_and_no_micro_batch_is_of_one_sample() -> None:
    with ScriptedManager(beta=0.3) as manager:
        ranks = run(2, buffers, env=manager.env)
    assert ranks[0][0][3:] == ranks[1][0][3:]
    assert all(size >= 2 for _, sizes in ranks for size in sizes)
    assert sum(len(sizes) for _, sizes in ranks) > 3 * len(ranks[0][0])


def scripted(rank: int, world_size: int, workers: int, seed: int) -> dict[tuple[int, int], list[list[int]]]:
    """Random peeks on single ranks, before epochs and between a draw and its loop; accumulation on all."""
    common, own = random.Random(seed), random.Random(100 * seed + rank)
    walk = Walk(rank, world_size, workers, 150)
    for number in range(2):
        walk.sampler.set_epoch(number)
        if own.random() < 0.5:
            next(iter(next(iter(walk.loader))))
        for draw, chunks in enumerate(walk.loader):
            if own.random() < 0.2:
                next(iter(next(iter(walk.loader))))
            with walk.model.no_sync() if common.random() < 0.3 else contextlib.nullcontext():
                for batch in chunks:
                    walk.seen.setdefault((number, draw), []).append(batch.tolist())
                    forward(walk.model, batch).backward()
    walk.loader.balancer.close()
    return walk.seen


@pytest.mark.parametrize("seed", range(4))
def test_random_scripts_hang_nobody_and_work_each_sample_once(seed: int) -> None:
    world_size, workers = 2 + seed % 2, (0, 0, 2, 0)[seed]
    with ScriptedManager(seed=seed) as manager:
        ranks = run(world_size, scripted, world_size, workers, seed, env=manager.env)
    check_epochs(merged(ranks), 150, 8 * world_size, 2)
