"""Shows a run while it goes on: a live table in a terminal, one line a block elsewhere.

Knows rows, not processes. Shown in milliseconds and samples.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lbbsp.demo.records import COMPARE, EQUAL, FIXED, LBBSP, SWEEP, WORKERS, Row

RowsOfRanks = list[list[Row]]
BAR_MS = 4.0
"""One cell of a bar."""
SMOOTHED = 10
NAMES = {EQUAL: "equal sizes", LBBSP: "LB-BSP", FIXED: "fixed split"}
PHASES = {SWEEP: "trying fixed splits, for the yardstick", COMPARE: "comparing, in alternating blocks"}


class Display(Protocol):
    """Takes rows as they come."""

    def add(self, rows: RowsOfRanks) -> None:
        """New rows of each rank."""


@contextmanager
def display(console: Console) -> Iterator[Display]:
    """A live table in a terminal, else lines."""
    if not console.is_terminal:
        lines = Lines(console)
        yield lines
        lines.finish()
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield Board(live)


class Lines:
    """One line for each block that is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open: RowsOfRanks = [[] for _ in range(WORKERS)]

    def add(self, rows: RowsOfRanks) -> None:
        """Keep the rows of the open blocks; say what is over."""
        for rank, new in enumerate(rows):
            self._open[rank] += new
        while all(rank and rank[-1].block > rank[0].block for rank in self._open):
            self._say_first()

    def finish(self) -> None:
        """The run is over, and with it the last block."""
        if all(self._open):
            self._say_first()

    def _say_first(self) -> None:
        number = min(rank[0].block for rank in self._open)
        self._say([[row for row in rank if row.block == number] for rank in self._open])
        self._open = [[row for row in rank if row.block != number] for rank in self._open]

    def _say(self, block: RowsOfRanks) -> None:
        first = block[0][0]
        line = f"{first.phase:8} {NAMES[first.mode]:11} {_mean_ms(block[0], 'iteration_s'):6.1f} ms"
        for rank, rows in enumerate(block):
            line += (
                f" | rank {rank}: {fmean(row.samples for row in rows):3.0f} samples, own "
                f"{_mean_ms(rows, 'own_s'):5.1f} ms, wait {_mean_ms(rows, 'wait_s'):5.1f} ms"
            )
        self._console.print(line, highlight=False, soft_wrap=True)


class Board:
    """A live table: for each way of training its newest iterations, and a bar for each rank."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._newest = {mode: [deque[Row](maxlen=SMOOTHED) for _ in range(WORKERS)] for mode in (EQUAL, LBBSP, FIXED)}

    def add(self, rows: RowsOfRanks) -> None:
        """Take in the newest rows and draw."""
        for rank, new in enumerate(rows):
            for row in new:
                self._newest[row.mode][rank].append(row)
        if rows[0]:
            self._live.update(self._table(rows[0][-1]))

    def _table(self, now: Row) -> Table:
        table = Table(title=PHASES.get(now.phase, now.phase), caption="█ own work   ░ waiting at the barrier")
        for name in ("", "iteration", "rank", "batch", "own", "wait"):
            table.add_column(name, justify="left" if not name else "right")
        table.add_column("", min_width=36)
        for mode, ranks in self._newest.items():
            for rank, rows in enumerate(ranks):
                if rows:
                    table.add_row(*self._cells(mode, rank, list(rows), mode == now.mode), end_section=rank > 0)
        return table

    def _cells(self, mode: str, rank: int, rows: list[Row], running: bool) -> list[Text]:
        own_ms, wait_ms = _mean_ms(rows, "own_s"), _mean_ms(rows, "wait_s")
        first = rank == 0
        words = [
            f"{'> ' if running else '  '}{NAMES[mode]}" if first else "",
            f"{_mean_ms(rows, 'iteration_s'):.0f} ms" if first else "",
            str(rank),
            str(rows[-1].samples),
            f"{own_ms:.0f} ms",
            f"{wait_ms:.0f} ms",
        ]
        bar = Text("█" * round(own_ms / BAR_MS), style="green").append("░" * round(wait_ms / BAR_MS), style="red")
        return [Text(word, style="bold" if running else "") for word in words] + [bar]


def _mean_ms(rows: list[Row], name: str) -> float:
    return 1e3 * fmean(getattr(row, name) for row in rows)
