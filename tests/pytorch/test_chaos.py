"""Ten schedules of bench/chaos.py: real training under faults of all kinds; and that its counts count."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import chaos_faults  # noqa: E402
import chaos_path  # noqa: E402
from chaos_job import Program, flat, loss_of  # noqa: E402

NOTHING = ("lost", "repeated", "unequal_plans", "hangs", "wrong_gradients", "failures")
PROGRAM = Program(seed=3, steps=16, samples=118)


@pytest.mark.timeout(400)
def test_random_faults_lose_and_repeat_nothing_and_hang_nobody(tmp_path):
    command = [sys.executable, str(BENCH / "chaos.py"), "--schedules", "10", "--at-once", "3"]
    command += ["--json", str(tmp_path / "figures")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    figures = json.loads((tmp_path / "figures").read_text())
    assert {name: figures[name] for name in NOTHING} == dict.fromkeys(NOTHING, 0)
    assert figures["schedules"] == 10
    assert figures["iterations"] > 500
    assert figures["plan_changes"] > 20
    assert figures["faults_effective"] > 20
    assert figures["restarts"] > 3
    assert figures["offered"] > 50


def played():
    """Lines as a faultless job writes them that was started again at step 9 from the checkpoint of step 6."""
    single = chaos_path.Single(PROGRAM)
    gradients, batches = [], [samples for _, samples in chaos_path.expected(PROGRAM)]
    for batch in batches:
        single._optimizer.zero_grad()
        loss_of(single._model(single._data.inputs[batch]), single._data.targets[batch]).backward()
        gradients.append(flat(one.grad for one in single.parameters))
        single._optimizer.step()
    found = []
    for restart, steps in ((0, range(9)), (1, range(6, PROGRAM.steps))):
        for rank in range(2):
            life = chaos_path.Life(restart, rank, 100 + restart, steps[0], f"i{restart}")
            for step in steps:
                cut = len(batches[step]) * 5 // 16
                mine = batches[step][:cut] if rank == 0 else batches[step][cut:]
                life.draws[step, 0] = {"indices": list(mine), "sizes": [5, 11]}
                life.gradients[step] = list(gradients[step])
            life.weights = flat(single.parameters) if restart else None
            found.append(life)
    return found


def counted(found, program=PROGRAM):
    counts = chaos_path.judge(program, found)
    return {name: counts[name] for name in ("lost", "repeated", "unequal_plans", "wrong_gradients")}


def first_weights(seed):
    return flat(chaos_path.Single(replace(PROGRAM, seed=seed)).parameters)


def test_schedules_that_are_judged_at_once_are_compared_with_the_weights_that_their_jobs_began_with():
    seeds = [number % 3 for number in range(300)]
    alone = [first_weights(seed) for seed in seeds]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(first_weights, seeds)) == alone


NONE = {"lost": 0, "repeated": 0, "unequal_plans": 0, "wrong_gradients": 0}


def test_the_path_leaves_out_what_a_restart_has_undone():
    found = played()
    assert chaos_path.path_of(found) == [0] * 6 + [1] * 10
    assert counted(found) == NONE
    found[0].draws[7, 0]["indices"] = []
    found[0].gradients[8][0] += 1.0
    assert counted(found) == NONE


def test_a_lost_sample_counts():
    found = played()
    found[3].draws[9, 0]["indices"].pop()
    assert counted(found) == NONE | {"lost": 1, "unequal_plans": 1}


def test_a_repeated_sample_counts():
    found = played()
    row = found[2].draws[9, 0]["indices"]
    row[0] = found[2].draws[8, 0]["indices"][0]
    assert counted(found) == NONE | {"lost": 1, "repeated": 1}


def test_plans_that_differ_count():
    found = played()
    found[1].draws[4, 0]["sizes"] = [6, 10]
    found[2].draws[10, 0]["sizes"] = [5, 12]
    assert counted(found) == NONE | {"unequal_plans": 2}


def test_parts_other_than_planned_count_unless_ranks_claim_them():
    found = played()
    for life in found:
        for row in life.draws.values():
            row["sizes"] = [8, 8]
    whole = PROGRAM.samples // PROGRAM.global_batch * 2
    assert counted(found) == NONE | {"unequal_plans": whole}
    assert counted(found, replace(PROGRAM, claims=True)) == NONE


def test_a_wrong_gradient_of_any_rank_counts_and_so_do_other_weights():
    found = played()
    found[1].gradients[5][3] += 1e-8
    found[2].gradients[11][0] *= 1 + 1e-6
    found[3].weights[0] += 1e-8
    assert counted(found) == NONE | {"wrong_gradients": 3}


def test_steps_that_are_missing_count():
    found = played()
    del found[2].gradients[15], found[3].gradients[15]
    counts = counted(found)
    assert counts["lost"] + counts["wrong_gradients"] > 1


def test_a_seed_is_a_schedule_and_all_kinds_come_up():
    schedules = [chaos_faults.Schedule.of(seed) for seed in range(100)]
    assert schedules == [chaos_faults.Schedule.of(seed) for seed in range(100)]
    kinds = {fault.kind for schedule in schedules for fault in schedule.faults}
    assert kinds == {*chaos_faults.SIGNALS, *chaos_faults.LINKS}
    assert sum(fault.step < 0 for schedule in schedules for fault in schedule.faults) > 3
    assert sum(fault.lasts_s > 5.5 for schedule in schedules for fault in schedule.faults) == 4
    assert 15 < sum(schedule.program.claims for schedule in schedules) < 50
