"""Speculative execution on real ranks: progress, copies and first results are kept in the job's store.

A rank that has nothing to do looks at everybody's progress, and copies the task that lags most behind, if that one
lags enough and nobody else copies it. An atomic counter says whose result came first: it counts, the other doesn't.
"""

import time

import numpy as np
import torch
import torch.distributed as dist

from bench.schemes.deck import Share
from bench.schemes.model import Floats
from bench.schemes.rank import Rank
from bench.schemes.speculation import BELOW, CHECK_S


class Board:
    """The tasks of one iteration, as all ranks see them."""

    def __init__(self, rank: Rank, iteration: int) -> None:
        self._store, self._workers, self._key = rank.store, rank.setup.workers, f"speculation/{iteration}"

    def tell(self, task: int, progress: float) -> bool:
        """Say how far a task's own attempt is; whether somebody else's result made it needless."""
        self._store.set(f"{self._key}/progress/{task}", repr(progress))
        return self.finished(task)

    def finished(self, task: int) -> bool:
        """Whether a task has a result."""
        return bool(self._store.add(f"{self._key}/result/{task}", 0) > 0)

    def first(self, task: int) -> bool:
        """Hand in a result; whether it is the one that counts."""
        if self._store.add(f"{self._key}/result/{task}", 1) > 1:
            return False
        self._store.add(f"{self._key}/results", 1)
        return True

    def over(self) -> bool:
        """Whether every task has a result."""
        return bool(self._store.add(f"{self._key}/results", 0) >= self._workers)

    def lagging(self) -> int | None:
        """The task that this rank is to copy, and that no other will."""
        progress = [self._progress(task) for task in range(self._workers)]
        limit = BELOW * sum(progress) / len(progress)
        for task in sorted(range(self._workers), key=lambda task: progress[task]):
            if progress[task] < limit and self._store.add(f"{self._key}/copies/{task}", 1) == 1:
                return task
        return None

    def _progress(self, task: int) -> float:
        if self.finished(task):
            return 1.0
        key = f"{self._key}/progress/{task}"
        return float(self._store.get(key)) if self._store.check([key]) else 0.0


def train(rank: Rank) -> None:
    """All iterations of one rank."""
    for iteration in range(rank.setup.iterations):
        shares, board = rank.deal(), Board(rank, iteration)
        rank.account.applied.append([])
        total = _attempt(rank, board, rank.rank, shares[rank.rank], copy=False)
        while not board.over():
            task = board.lagging()
            if task is None:
                time.sleep(CHECK_S / 2)
            else:
                total = total + _attempt(rank, board, task, shares[task], copy=True)
        tensor = torch.from_numpy(total)
        dist.all_reduce(tensor)
        rank.weights = rank.weights - rank.step(iteration) * np.asarray(tensor.numpy(), dtype=np.float32)
        rank.account.ended_s.append(rank.now_s())


def _attempt(rank: Rank, board: Board, task: int, share: Share, copy: bool) -> Floats:
    """Compute a task; its part of the mean gradient, or zeros where another attempt was first."""
    gradient = rank.compute(
        share, (lambda _: board.finished(task)) if copy else (lambda done: board.tell(task, done)), first=not copy
    )
    if gradient is None or not board.first(task):
        rank.account.wasted += len(share)
        return np.zeros_like(rank.weights)
    rank.applied(share)
    part: Floats = gradient * np.float32(len(share) / rank.setup.global_batch)
    return part
