"""Loops that claim and go wrong: told by name, hanging nobody, moving no parameter by what was not averaged."""

import contextlib
import os
import random
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from epochs import Numbers
from random_manager import ScriptedManager
from ranks import Outcome, outcomes, run
from test_claims import Walk, check_epochs, merged
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.core.parts import WHOLE_PPM
from lbbsp.errors import ConfigError, UnsupportedError

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


# --- kills, resumes


def resuming(rank: int, state: Any, draws: int, workers: int, killed_at: int | None) -> tuple[Any, Any]:
    """Work so many iterations; the state, taken at each end and, to no effect, among micro-batches."""
    walk = Walk(rank, 2, workers, 206)
    first = 0
    if state is not None:
        walk.loader.load_state_dict(state)
        first = state["consumed_draws"]
    walk.sampler.set_epoch(0)
    for done, chunks in enumerate(walk.loader):
        draw = first + done
        within = []
        for number, batch in enumerate(chunks):
            dies = killed_at is not None and due(walk, done, killed_at)
            if dies:
                let_claim(rank, number)
            if rank == 1 and dies and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            forward(walk.model, batch).backward()
            within.append(batch.tolist())
            assert walk.loader.state_dict()["consumed_draws"] == draw, "what was not reduced counts"
        walk.seen[0, draw] = within
        if rank == 0 and killed_at is not None:
            torch.save((walk.seen, walk.loader.state_dict()), os.environ["CHECKPOINT"])
        if done + 1 == draws:
            break
    state = walk.loader.state_dict()
    walk.loader.balancer.close()
    return walk.seen, state


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_within_an_epoch_count_what_was_reduced(workers: int) -> None:
    found: dict[tuple[int, int], list[int]] = {}
    state: Any = None
    with ScriptedManager(seed=4) as manager:
        for draws in (3, 4, 20):
            answers = run(2, resuming, state, draws, workers, None, env=manager.env)
            assert answers[0][1] == answers[1][1]
            state = answers[0][1]
            found |= merged([seen for seen, _ in answers])
    check_epochs(found, 206, 16, 1)


def test_a_rank_killed_with_a_claim_ends_the_job_and_a_restart_works_each_sample_once(tmp_path: Any) -> None:
    with ScriptedManager(beta=0.2) as manager:
        env = manager.env | {"CHECKPOINT": str(tmp_path / "state")}
        began_s = time.perf_counter()
        ended = outcomes(2, resuming, None, 20, 0, 5, env=env)
        assert time.perf_counter() - began_s < 25, "nobody waits for the collectives' timeout"
        assert text(ended[1]) == "died"
        assert text(ended[0]).startswith(PEER_GONE)
        _, state = torch.load(tmp_path / "state", weights_only=False)
        done = state["consumed_draws"]
        assert 5 <= done < 13
        again = run(2, resuming, state, 20, 0, None, env=env)
    found = merged([seen for seen, _ in again])
    order = torch.randperm(206, generator=torch.Generator().manual_seed(0)).tolist()
    worked = [index for draw in range(done, 13) for index in found[0, draw]]
    assert sorted(worked) == sorted(order[16 * done :])


# --- the store


class SlowStore:
    """The counters' store, each answer late."""

    def __init__(self, store: Any, delay_s: float) -> None:
        self.store, self.delay_s, self.deleted = store, delay_s, 0

    def add(self, name: str, units: int) -> int:
        time.sleep(self.delay_s)
        return int(self.store.add(name, units))

    def delete_key(self, name: str) -> bool:
        self.deleted += 1
        return bool(self.store.delete_key(name))


def slow_store(rank: int) -> tuple[Any, int, int]:
    walk = Walk(rank, 2, 0, 206)
    slow = walk.loader.counters._store = SlowStore(walk.loader.counters._store, 0.01)
    ahead = 0
    later = walk.loader.counters.add_later

    def counted(name: str, units: int) -> Any:
        nonlocal ahead
        ahead += 1
        return later(name, units)

    walk.loader.counters.add_later = counted
    for number in range(2):
        walk.epoch(number)
    walk.loader.balancer.close()
    return walk.seen, ahead, slow.deleted


def test_a_slow_store_is_asked_ahead_and_nothing_is_lost() -> None:
    with ScriptedManager(beta=0.1) as manager:
        answers = run(2, slow_store, env=manager.env)
    check_epochs(merged([seen for seen, _, _ in answers]), 206, 16, 2)
    assert sum(ahead for _, ahead, _ in answers) > 5
    assert answers[0][2] > 10, "rank 0 deletes counters"
    assert answers[1][2] == 0


def dead_store(rank: int) -> None:
    """The store of rank 1's counters has gone away."""
    walk = Walk(rank, 2, 0, 400)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if rank == 1:
        walk.loader.counters._store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        del server
    walk.epoch(0)


def test_a_dead_store_is_torchs_own_error() -> None:
    with ScriptedManager(beta=0.2) as manager:
        ended = outcomes(2, dead_store, env=manager.env)
    assert text(ended[1]).startswith(PEER_GONE)
    assert text(ended[0]).startswith(PEER_GONE)


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
