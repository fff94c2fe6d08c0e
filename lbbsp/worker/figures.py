"""What a rank says of itself to any logger: sizes in samples, times in seconds, counts."""

import numpy as np

from lbbsp.worker.follower import Follower


def figures(follower: Follower, rank: int, global_batch: int, away: bool) -> dict[str, float]:
    """Figures of this rank, each a float; `away` says whether no manager answers."""
    totals, in_force = follower.totals, follower.in_force
    return {
        "lbbsp/iteration": float(totals.iterations),
        "lbbsp/batch_samples": float(in_force.sizes[rank]),
        "lbbsp/global_batch_samples": float(global_batch),
        "lbbsp/based_on_iteration": float(in_force.based_on_iteration),
        "lbbsp/lag_iterations": float(np.median(totals.lags)) if totals.lags else float("nan"),
        "lbbsp/plan_changes": float(totals.plan_changes),
        "lbbsp/own_time_s": totals.own_time_s / max(1, totals.iterations),
        "lbbsp/wait_s": totals.wait_s / max(1, totals.iterations),
        "lbbsp/manager_away": float(away),
    }
