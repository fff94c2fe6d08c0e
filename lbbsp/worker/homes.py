"""Homes: the part of each iteration's positions that a rank's loader workers fetch ahead.

A home follows a rank's long-run share, so that other ranks' changes of size don't move it. The sizes of an iteration
say how much of its home a rank takes; what some leave, the others take in order of rank, computed alike everywhere.
Pure; positions and sizes in samples, relative to the iteration's first position.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.worker.vector import IntArray

Interval = tuple[int, int]
SHARE_MEMORY = 0.25
"""Share of the newest sizes in the long-run share."""
MOVED_SHARE = 0.02
"""Homes move when a long-run share has left its home by more than this part of an equal share."""
SETTLED = 64
"""After so many iterations of the same sizes their long-run share is theirs."""


def portions(homes: IntArray, sizes: IntArray, rank: int) -> list[Interval]:
    """The intervals that a rank takes: what it can of its home, then its turn of what others leave of theirs.

    Args:
        homes: (ranks,) what each fetches ahead.
        sizes: (ranks,) what each takes, of the same sum or a smaller one.
        rank: whose intervals.
    """
    starts = np.cumsum(homes) - homes
    kept = np.minimum(homes, sizes)
    mine = [(int(starts[rank]), int(starts[rank] + kept[rank]))] if kept[rank] else []
    wanted = sizes - kept
    if wanted[rank]:
        before = int(wanted[:rank].sum())
        mine += _of_left(starts + kept, homes - kept, before, before + int(wanted[rank]))
    return mine


def left_portions(homes: IntArray, sizes: IntArray, low: int, high: int) -> list[Interval]:
    """The low-th to high-th position of what portions() of these sizes, of a smaller sum, leave to nobody."""
    starts, kept = np.cumsum(homes) - homes, np.minimum(homes, sizes)
    taken = int((sizes - kept).sum())
    return _of_left(starts + kept, homes - kept, taken + low, taken + high) if high > low else []


def _of_left(starts: IntArray, counts: IntArray, low: int, high: int) -> list[Interval]:
    """The low-th to high-th position of what is left, where each rank leaves `counts` positions from `starts` on."""
    ends = np.cumsum(counts)
    found = []
    for owner in range(int(np.searchsorted(ends, low, side="right")), len(counts)):
        first = int(ends[owner] - counts[owner])
        if first >= high:
            break
        if counts[owner]:
            shift = int(starts[owner]) - first
            found.append((max(low, first) + shift, min(high, int(ends[owner])) + shift))
    return found


def split(intervals: list[Interval], parts: int) -> list[list[Interval]]:
    """Intervals dealt out in order into so many lists of nearly equal counts."""
    total = sum(stop - start for start, stop in intervals)
    dealt: list[list[Interval]] = [[] for _ in range(parts)]
    done = 0
    for start, stop in intervals:
        while start < stop:
            part = min(parts - 1, done * parts // total)
            room = -(-(part + 1) * total // parts) - done
            step = min(stop - start, max(1, room))
            dealt[part].append((start, start + step))
            start, done = start + step, done + step
    return dealt


class Homes:
    """Rank 0's account of long-run shares; what it gives is broadcast, since floats round apart on unlike machines.

    Args:
        start: (ranks,) the first homes.
    """

    def __init__(self, start: IntArray) -> None:
        self.homes, self._sizes = start, start
        self._same = 0
        self._share: npt.NDArray[np.float64] = start.astype(np.float64)

    def follow(self, sizes: IntArray) -> IntArray:
        """The homes after an iteration of these sizes; the same sum."""
        self._same = self._same + 1 if sizes is self._sizes else 0
        self._sizes = sizes
        if self._same > SETTLED:
            return self.homes
        self._share += SHARE_MEMORY * (sizes - self._share)
        total = int(sizes.sum())
        if np.abs(self._share - self.homes).max() > max(1.0, MOVED_SHARE * total / len(sizes)):
            self.homes = _rounded(self._share, total)
        return self.homes


def _rounded(shares: npt.NDArray[np.float64], total: int) -> IntArray:
    """Whole numbers of this sum, each next to its share."""
    whole = np.floor(shares).astype(np.int64)
    rest = total - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:rest]] += 1
    return whole
