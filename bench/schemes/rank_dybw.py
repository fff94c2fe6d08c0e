"""cb-DyBW on real ranks: the order of arrival, kept in the job's store, decides every iteration alike on all ranks.

A rank that is ready takes the next place in the order. The iteration ends at the first place at which the threshold
is reached; who has a later place, or none, drops its work. So who takes part is agreed without a word more.
"""

import time

import torch
import torch.distributed as dist

from bench.schemes.deck import Share
from bench.schemes.dybw import Threshold, metropolis, ring_graph
from bench.schemes.rank import SLICE_S, Rank


class Order:
    """Ranks in their order of arrival in one iteration, until the threshold is reached."""

    def __init__(self, rank: Rank, iteration: int, threshold: Threshold) -> None:
        self.members: list[int] = []
        self.over = False
        self._rank, self._key, self._threshold = rank, f"dybw/{iteration}", threshold

    def arrive(self) -> None:
        """This rank is ready."""
        store = self._rank.store
        store.set(f"{self._key}/{store.add(f'{self._key}/places', 1)}", str(self._rank.rank))

    def look(self) -> bool:
        """Read new arrivals; whether the iteration is over."""
        while not self.over and self._rank.store.check([key := f"{self._key}/{len(self.members) + 1}"]):
            self.members.append(int(self._rank.store.get(key)))
            everybody = len(self.members) == self._rank.setup.workers
            self.over = everybody or self._threshold.reached(set(self.members))
        return self.over


def train(rank: Rank) -> None:
    """All iterations of one rank."""
    threshold = Threshold(rank.setup.workers)
    for iteration in range(rank.setup.iterations):
        share, order = rank.deal()[rank.rank], Order(rank, iteration, threshold)
        gradient = rank.compute(share, lambda _, order=order: order.look())  # type: ignore[misc]
        if gradient is not None:
            order.arrive()
        while not order.look():
            time.sleep(SLICE_S / 4)
        threshold.close(set(order.members))
        rank.account.members.append(sorted(order.members))
        rank.account.applied.append([])
        if gradient is not None and rank.rank in order.members:
            rank.weights = rank.weights - rank.step(iteration) * gradient
            _mix(rank, order.members, iteration)
            rank.applied(share)
        else:
            _drop(rank, share)
        rank.account.ended_s.append(rank.now_s())


def _drop(rank: Rank, share: Share) -> None:
    rank.account.wasted += len(share)


def _mix(rank: Rank, members: list[int], iteration: int) -> None:
    """Exchange models with the neighbours that took part, and average."""
    workers = rank.setup.workers
    here = torch.zeros(workers, dtype=torch.bool)
    here[members] = True
    mask = here.numpy()
    weights = metropolis(ring_graph(workers) & mask[:, None] & mask[None])[rank.rank]
    others = [other for other in range(workers) if other != rank.rank and weights[other] > 0]
    mine = torch.from_numpy(rank.weights)
    theirs = {other: torch.empty_like(mine) for other in others}
    waits = [dist.isend(mine, other, tag=iteration) for other in others]
    waits += [dist.irecv(tensor, other, tag=iteration) for other, tensor in theirs.items()]
    for wait in waits:
        if wait is not None:
            wait.wait()
    mixed = float(weights[rank.rank]) * mine
    for other, tensor in theirs.items():
        mixed = mixed + float(weights[other]) * tensor
    rank.weights = mixed.numpy()
