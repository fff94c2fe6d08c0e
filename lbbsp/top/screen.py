"""What `lbbsp top` shows: the job in two lines, its ranks as rows, who is slow and why. Draws; asks nobody.

Times in ms on the screen. Sparklines show the last own times of a rank, all on one scale.
"""

import math
from collections import deque
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lbbsp.protocol import Flag, Seen

BARS = "▁▂▃▄▅▆▇█"
REMEMBERED = 16
HELP = "r rank  b batch  o own time  w wait  s speed  e error  f slow (again: turned)  ↑ ↓ page  q quit"


class History:
    """The last own times of each rank."""

    def __init__(self) -> None:
        self._rows: dict[int, deque[float]] = {}
        self._iteration = -1

    def add(self, seen: Seen) -> None:
        """Take one answer, unless nothing has happened since."""
        if seen.iteration == self._iteration:
            return
        self._iteration = seen.iteration
        for rank, time_s in enumerate(seen.own_time_s, seen.first):
            self._rows.setdefault(rank, deque(maxlen=REMEMBERED)).append(time_s)

    def line(self, rank: int, most_s: float) -> str:
        """A sparkline; full height is most_s."""
        return "".join(_bar(time_s / most_s if most_s > 0 else math.nan) for time_s in self._rows.get(rank, ()))


def _bar(share: float) -> str:
    return " " if math.isnan(share) else BARS[min(len(BARS) - 1, max(0, int(share * len(BARS))))]


KEYS: dict[str, tuple[str, Callable[[Seen, int, dict[int, Flag]], float]]] = {
    "r": ("rank", lambda seen, row, flags: -row),
    "b": ("batch", lambda seen, row, flags: float(seen.sizes[row])),
    "o": ("own ms", lambda seen, row, flags: seen.own_time_s[row]),
    "w": ("wait ms", lambda seen, row, flags: seen.wait_s[row]),
    "s": ("speed", lambda seen, row, flags: -seen.relative_speed[row]),
    "e": ("error", lambda seen, row, flags: seen.forecast_error[row]),
    "f": ("slow", lambda seen, row, flags: _severity(flags.get(seen.first + row))),
}
"""Keys that sort: the column's title, and what is sorted by, the largest first."""


def _severity(flag: Flag | None) -> float:
    if flag is None:
        return 0.0
    return (1.0 if not flag.slow else 2.0) + (0.0 if math.isnan(flag.slowdown) else min(flag.slowdown, 1e6))


class Screen:
    """Sorting and scrolling, and the drawing of one answer."""

    def __init__(self) -> None:
        self.key, self.turned, self.top = "f", False, 0
        self.history = History()

    def press(self, key: str, page: int) -> bool:
        """Take a key; False to quit."""
        if key in ("q", "\x03", "\x1b"):
            return False
        if key in KEYS:
            self.turned = key == self.key and not self.turned
            self.key, self.top = key, 0
        self.top = max(0, self.top + {"down": 1, "up": -1, "next": page, "previous": -page}.get(key, 0))
        return True

    def draw(self, seen: Seen, height: int) -> RenderableType:
        """Everything, in so many lines."""
        why = seen.flags[: max(1, min(6, height // 5))]
        short = len(seen.sizes) + 2 * len(why) + 6 > height
        rows = max(1, height - 6 - len(why))
        return Group(
            _head(seen), self._table(seen, rows), *(_why(flag, seen, short) for flag in why), Text(HELP, style="dim")
        )

    def order(self, seen: Seen) -> list[int]:
        """Rows of the answer as they are shown."""
        flags = {flag.rank: flag for flag in seen.flags}
        value = KEYS[self.key][1]
        rows = [(_ranked(value(seen, row, flags)), row) for row in range(len(seen.sizes))]
        rows.sort(key=lambda one: (-one[0], one[1]), reverse=self.turned)
        return [row for _, row in rows]

    def _table(self, seen: Seen, rows: int) -> Table:
        table = Table(box=None, padding=(0, 1), expand=False)
        for key, (title, _) in KEYS.items():
            mark = (" ▴" if self.turned else " ▾") if key == self.key else ""
            table.add_column(title + mark, justify="right", no_wrap=True)
        table.add_column("cause", no_wrap=True)
        table.add_column("own time", no_wrap=True)
        flags = {flag.rank: flag for flag in seen.flags}
        order = self.order(seen)
        self.top = min(self.top, max(0, len(order) - rows))
        most_s = max((time_s for time_s in seen.own_time_s if time_s == time_s), default=0.0) * 1.2
        for row in order[self.top : self.top + rows]:
            flag = flags.get(seen.first + row)
            cells = _cells(seen, row, flag)
            style = "bold red" if flag and flag.slow else "yellow" if flag else ""
            table.add_row(*cells, self.history.line(seen.first + row, most_s), style=style)
        return table


def _ranked(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _head(seen: Seen) -> Text:
    error = "" if math.isnan(seen.forecast_error_percent) else f", error {seen.forecast_error_percent:.1f} %"
    slow = sum(flag.slow for flag in seen.flags)
    return Text(
        f"job {seen.job}   iteration {seen.iteration}   {1e3 * seen.iteration_time_s:.1f} ms   "
        f"wait {seen.wait_share:.1%}   {seen.world_size} ranks, {slow} slow\n"
        f"global batch {seen.global_batch}   {seen.mode}, saved {seen.saved_share:.0%}   lag {seen.lag}   "
        f"{seen.predictor}{error}   {seen.plan_changes} plan changes",
        style="bold",
    )


def _cells(seen: Seen, row: int, flag: Flag | None) -> tuple[str, ...]:
    return (
        str(seen.first + row),
        str(seen.sizes[row]),
        _number(1e3 * seen.own_time_s[row], ".1f"),
        _number(1e3 * seen.wait_s[row], ".1f"),
        _number(seen.relative_speed[row], ".2f"),
        _number(100 * seen.forecast_error[row], ".1f", " %"),
        _mark(flag),
        flag.cause if flag else "",
    )


def _mark(flag: Flag | None) -> str:
    if flag is None or not flag.slow:
        return ""
    return "silent" if "silent" in flag.detectors else f"{flag.slowdown:.1f}x" + ("" if flag.lasting else "?")


def _number(value: float, form: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def _why(flag: Flag, seen: Seen, short: bool) -> Text:
    row = flag.rank - seen.first
    machine = f" ({seen.machines[row]})" if 0 <= row < len(seen.machines) else ""
    since = f" since iteration {flag.since}" if flag.slow else ""
    text = f"rank {flag.rank}{machine}{since}: {flag.cause}: {flag.evidence}"
    return Text(text, no_wrap=short, overflow="ellipsis" if short else "fold")
