"""Real ranks account for every sample, and have the models that follow from who took part. No timing is judged."""

import pytest

from bench.schemes import real, replay
from bench.schemes.launch import launch
from bench.schemes.world import NOMINAL_S


@pytest.mark.parametrize("scheme", real.REAL)
def test_real_ranks_apply_exactly_what_they_say(scheme):
    setup = real.job(workers=4, iterations=5, seed=0)
    accounts = launch(scheme, "bursts", setup)
    replay.check(scheme, accounts, setup)
    assert sum(account["wasted"] for account in accounts) >= 0
    assert all(len(account["ended_s"]) == 5 for account in accounts)
    assert min(account["ended_s"][-1] for account in accounts) > 5 * NOMINAL_S / 2


@pytest.mark.parametrize("fault", ["lost", "twice", "model", "members"])
def test_a_wrong_account_is_found(fault):
    setup = real.job(workers=2, iterations=1, seed=0)
    models = replay._mixed(setup, [[0, 1]])
    accounts = [
        {"started": 32, "wasted": 0, "applied": [list(range(32 * rank, 32 * rank + 32))], "members": [[0, 1]],
         "weights": models[rank]} for rank in range(2)
    ]  # fmt: skip
    replay.check("cb-dybw", accounts, setup)
    if fault == "lost":
        accounts[0]["applied"][0].pop()
    if fault == "twice":
        accounts[0]["applied"] = accounts[1]["applied"]
    if fault == "model":
        accounts[0]["weights"] = models[1] + 1.0
    if fault == "members":
        accounts[0]["members"] = [[0]]
    with pytest.raises(RuntimeError, match=r"started|twice|differ|disagree"):
        replay.check("cb-dybw", accounts, setup)
