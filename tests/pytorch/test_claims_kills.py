"""Kills, resumes and stores that fail, in loops that claim: each sample is worked once on the path that counts."""

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from random_manager import ScriptedManager
from ranks import outcomes, run
from test_claims import Walk, check_epochs, merged
from test_claims_broken import PEER_GONE, due, forward, let_claim, text

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
    later = walk.loader.counters.later

    def counted(call: Any, delay_s: float) -> Any:
        nonlocal ahead
        ahead += 1
        return later(call, delay_s)

    walk.loader.counters.later = counted
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
