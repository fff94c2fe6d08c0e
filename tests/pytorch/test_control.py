"""Plans and sums travel side by side: neither is taken for the other, whatever torch is told to check."""

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run

from lbbsp.adapters.pytorch.link import Control
from lbbsp.worker.vector import payload_length

RANKS, PLANS, SUMS = 3, 200, 100


def side_by_side(rank: int, level: str) -> tuple[list[int], list[float], list[int]]:
    """Plans received, sums and gathers of one rank; rank 0 sends from a thread of its own."""
    dist.set_debug_level(getattr(dist.DebugLevel, level))
    control = Control(dist.group.WORLD)
    length = payload_length(RANKS)
    plans: list[int] = []

    def send() -> None:
        for number in range(PLANS):
            control.send(np.full(length, number, dtype=np.int64))

    def receive() -> None:
        plans.extend(int(control.receive()()[-1]) for _ in range(PLANS))

    other = threading.Thread(target=receive if rank else send)
    other.start()
    sums = [float(control.sum(torch.tensor([float(rank + number)]))[0]) for number in range(SUMS)]
    waits = [control.post_sum(torch.tensor([float(number)])) for number in range(5)]
    sums += [float(wait()[0]) for wait in waits]
    other.join()
    sums.append(float(control.sum(torch.ones(1))[0]))
    return plans, sums, control.gather(rank)


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_plans_and_sums_on_the_way_together_arrive_as_they_were_sent(level: str) -> None:
    for rank, (plans, sums, gathered) in enumerate(run(RANKS, side_by_side, level)):
        assert plans == (list(range(PLANS)) if rank else [])
        assert sums == [3.0 + 3 * number for number in range(SUMS)] + [3.0 * number for number in range(5)] + [3.0]
        assert gathered == [0, 1, 2]
