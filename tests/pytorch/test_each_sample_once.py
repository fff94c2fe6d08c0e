"""Rule 5: each sample once an epoch, whatever the plans, the loader workers, the resumes and the world size do."""

import itertools
from collections import Counter
from typing import Any

import pytest
from epochs import Plan, epochs, part, reloads
from random_manager import ScriptedManager
from ranks import outcomes, run

Seen = dict[int, list[list[int]]]


def merged(ranks: list[Seen], epoch: int) -> list[list[int]]:
    """The global batches of an epoch, each in order of rank."""
    draws = [len(seen.get(epoch, [])) for seen in ranks]
    assert len(set(draws)) == 1, f"ranks drew {draws} times"
    return [[index for seen in ranks for index in seen[epoch][draw]] for draw in range(draws[0])]


def check(ranks: list[Seen], plan: Plan, world_size: int, epochs_run: int) -> None:
    """Every epoch takes its order exactly, X at a time."""
    batch = plan.local_batch * world_size
    orders = []
    for epoch in range(epochs_run):
        batches = merged(ranks, epoch)
        flat = [index for one in batches for index in one]
        whole = plan.samples - (plan.samples % batch if plan.drop_last else 0)
        assert [len(one) for one in batches] == [min(batch, whole - at) for at in range(0, whole, batch)]
        expected = plan.order(epoch)
        if expected is not None and plan.workers == (0,):
            assert flat == expected[:whole]
        elif expected is not None:  # loader workers fetch ahead: which rank has what of a global batch differs
            assert [sorted(one) for one in batches] == [
                sorted(expected[at:whole][:batch]) for at in range(0, whole, batch)
            ]
        elif plan.sampler != "weighted" and not plan.drop_last:
            assert Counter(flat) == Counter(range(plan.samples))
        orders.append(tuple(flat))
    if plan.sampler in ("random", "shuffle", "weighted", "generator", "distributed") and plan.samples > 50:
        assert len(set(orders)) == epochs_run, "every epoch had the same order"


def changed(ranks: list[Seen]) -> int:
    """Draws whose sizes differ from those of the draw before."""
    sizes = [[tuple(len(seen[e][d]) for seen in ranks) for d in range(len(ranks[0][e]))] for e in ranks[0]]
    return sum(a != b for epoch in sizes for a, b in itertools.pairwise(epoch))


CASES = {
    "shuffled": (2, Plan()),
    "unshuffled": (2, Plan(sampler="unshuffled")),
    "random_seeded_apart": (2, Plan(sampler="random")),
    "own_generator": (2, Plan(sampler="generator")),
    "shuffle_argument": (2, Plan(sampler="shuffle")),
    "sequential": (2, Plan(sampler="sequential")),
    "weighted": (2, Plan(sampler="weighted")),
    "users_own": (2, Plan(sampler="backwards")),
    "three_ranks": (3, Plan(samples=157, local_batch=5)),
    "four_ranks": (4, Plan(samples=399, local_batch=10)),
    "workers": (2, Plan(workers=(2,))),
    "workers_unequal": (2, Plan(workers=(0, 2))),
    "workers_unequal_turned": (2, Plan(workers=(2, 0))),
    "workers_of_three": (3, Plan(samples=157, local_batch=5, workers=(1, 0, 2))),
    "workers_persistent": (2, Plan(workers=(1, 2), loader={"persistent_workers": True})),
    "prefetch_more": (2, Plan(workers=(1,), loader={"prefetch_factor": 5})),
    "workers_random": (2, Plan(workers=(2,), sampler="random")),
    "forkserver": (2, Plan(workers=(1,), epochs=1, loader={"multiprocessing_context": "forkserver"})),
    "drop_last": (2, Plan(drop_last=True)),
    "drop_last_workers": (2, Plan(drop_last=True, workers=(2,))),
    "exact_multiple": (2, Plan(samples=160)),
    "granular": (2, Plan(options={"min_samples": 0, "granularity": 4})),
    "bounded": (2, Plan(options={"min_samples": 3, "max_samples": 11})),
}


@pytest.mark.parametrize("name", CASES)
def test_each_epoch_takes_its_order_exactly(name: str) -> None:
    world_size, plan = CASES[name]
    with ScriptedManager(seed=len(name)) as manager:
        ranks = run(world_size, epochs, world_size, plan, env=manager.env)
    check(ranks, plan, world_size, plan.epochs)
    assert changed(ranks) > 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("samples", [0, 1, 5])
def test_a_data_set_smaller_than_the_global_batch(samples: int, workers: int) -> None:
    plan = Plan(samples=samples, workers=(workers,), epochs=2)
    with ScriptedManager() as manager:
        ranks = run(2, epochs, 2, plan, env=manager.env)
    check(ranks, plan, 2, plan.epochs)


@pytest.mark.parametrize("workers", [(0,), (2,), (0, 1)])
@pytest.mark.parametrize("sampler", ["distributed", "random"])
def test_several_resumes_within_an_epoch_in_one_process(workers: tuple[int, ...], sampler: str) -> None:
    plan = Plan(workers=workers, sampler=sampler, epochs=2)
    with ScriptedManager() as manager:
        ranks = run(2, reloads, 2, plan, [3, 1, 4], env=manager.env)
    check(ranks, plan, 2, plan.epochs)
    loads = {hello.incarnation for hello in manager.hellos}
    assert len(loads) == 1 + 3 * plan.epochs, "each load says hello again"


@pytest.mark.parametrize("worlds", [(2, 2, 2, 2), (2, 3, 2, 4)])
@pytest.mark.parametrize("plan", [Plan(), Plan(sampler="random", workers=(2, 0)), Plan(sampler="weighted")])
def test_resumes_in_new_processes_and_other_worlds(worlds: tuple[int, ...], plan: Plan) -> None:
    """206 samples, 16 at a time: 13 draws an epoch; the stops lie in the first, the second, the third epoch."""
    state: Any = None
    taken: dict[int, list[list[int]]] = {}
    done = 0
    with ScriptedManager() as manager:
        for world_size, draws in zip(worlds, (4, 5, 10, 20), strict=True):
            answers = run(world_size, part, world_size, plan, state, done // 13, draws, env=manager.env)
            states = [one for _, one in answers]
            assert all(one == states[0] for one in states), "state_dict() differs between ranks"
            state = states[0]
            for epoch in answers[0][0]:
                taken.setdefault(epoch, []).extend(merged([seen for seen, _ in answers], epoch))
            done += draws
    check([taken], Plan(samples=206, local_batch=16, sampler=plan.sampler), 1, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_raises_is_the_users_own_error(workers: int) -> None:
    plan = Plan(samples=100, sampler="unshuffled", broken=70, workers=(workers,), epochs=1)
    with ScriptedManager() as manager:
        ended = outcomes(2, epochs, 2, plan, env=manager.env)
    texts = [str(one.error) for one in ended]
    broken = [text for text in texts if text.startswith("LookupError") and "sample 70 is broken" in text]
    assert broken  # with loader workers two ranks may have fetched it: one ahead, one at the draw
    assert all(text.startswith(("LookupError", "RuntimeError", "DistBackendError")) for text in texts), texts
