"""What reports say beside what sizes follow from, kept until their iteration is closed: evidence for detectors.

Reports of several iterations may come at once, so each iteration has its own. Arrays over ranks; NaN = not told.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.protocol import Report

Array = npt.NDArray[np.float64]
PHASES = 3
"""Of own time, as reports tell them: before forward, forward, backward."""

MOST = 64
"""Iterations kept; those longest known give way."""


class Notes:
    """Of one job of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._cost: dict[int, Array] = {}
        self._phases_s: dict[int, Array] = {}

    def take_in(self, report: Report) -> None:
        """Keep what a sound report says of a sample's cost and of the parts of a draw's own time."""
        of = range(max(0, report.iteration - report.iterations + 1), report.iteration + 1)
        for iteration in of if report.cost else ():
            self._row(self._cost, iteration, (self._ranks,))[report.rank] = report.cost / max(1, report.samples)
        for iteration in of if len(report.phases_s) == PHASES else ():
            phases_s = np.divide(report.phases_s, report.draws)
            self._row(self._phases_s, iteration, (self._ranks, PHASES))[report.rank] = phases_s

    def of(self, iteration: int) -> tuple[Array | None, Array | None]:
        """Costs (ranks,) and parts (ranks, 3) of an iteration that has closed, once; None where nothing was told."""
        cost, phases_s = self._cost.pop(iteration, None), self._phases_s.pop(iteration, None)
        for kept in (self._cost, self._phases_s):
            for over in [number for number in kept if number < iteration]:
                del kept[over]
        return cost, phases_s

    def _row(self, kept: dict[int, Array], iteration: int, shape: tuple[int, ...]) -> Array:
        row = kept.get(iteration)
        if row is None:
            if len(kept) >= MOST:
                del kept[next(iter(kept))]
            row = kept[iteration] = np.full(shape, np.nan)
        return row
