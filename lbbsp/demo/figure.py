"""The demo's figure: sizes and times of the compared blocks, one below the other. PNG; times in milliseconds."""

from pathlib import Path
from typing import TYPE_CHECKING

from lbbsp.demo.records import COMPARE, EQUAL, FIXED, LBBSP, WORKERS, Row
from lbbsp.demo.report import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RowsOfRanks = list[list[Row]]
COLOURS = {EQUAL: "#888888", LBBSP: "#1b7837", FIXED: "#762a83"}
LABELS = {EQUAL: "equal sizes", LBBSP: "LB-BSP", FIXED: "best fixed split"}
RANK_COLOURS = ("#2166ac", "#b2182b")


def draw(rows: RowsOfRanks, result: Result, label: str, path: Path) -> None:
    """Write the figure.

    Args:
        rows: of each rank.
        result: for the title.
        label: how the workers were made unequal.
        path: of the PNG; its folder is made.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, sizes, waits) = plt.subplots(3, 1, figsize=(9, 8), layout="constrained")
    figure.suptitle(
        f"{result.iteration_ms.equal:.0f} ms an iteration with equal sizes, {result.iteration_ms.lbbsp:.0f} ms with "
        f"LB-BSP: {result.speedup:.2f} times as fast\n({label})",
        fontsize=11,
    )
    _draw_times(times, rows[0])
    _draw_sizes(sizes, rows)
    _draw_waits(waits, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _compared(rows: list[Row], mode: str) -> list[Row]:
    return [row for row in rows if row.mode == mode and row.phase == COMPARE]


def _draw_times(axes: "Axes", rows: list[Row]) -> None:
    for mode in (EQUAL, FIXED, LBBSP):
        values = [1e3 * row.iteration_s for row in _compared(rows, mode)]
        axes.plot(values, color=COLOURS[mode], label=LABELS[mode], linewidth=1)
    axes.set(ylabel="iteration, ms", ylim=(0, None))
    axes.legend(ncols=3, loc="lower right", fontsize=9)


def _draw_sizes(axes: "Axes", rows: RowsOfRanks) -> None:
    for rank in range(WORKERS):
        colour = RANK_COLOURS[rank]
        axes.plot([row.samples for row in _compared(rows[rank], LBBSP)], color=colour, label=f"rank {rank}, LB-BSP")
        fixed = _compared(rows[rank], FIXED)
        if fixed:
            axes.axhline(fixed[-1].samples, color=colour, linestyle=":", linewidth=1, label=f"rank {rank}, best fixed")
    axes.set(xlabel="iteration", ylabel="batch, samples", ylim=(0, None))
    axes.legend(ncols=2, loc="lower right", fontsize=9)


def _draw_waits(axes: "Axes", rows: RowsOfRanks) -> None:
    """Own time and wait of each rank, stacked, as means over the compared iterations."""
    bars = [(mode, rank) for mode in (EQUAL, LBBSP, FIXED) for rank in range(WORKERS)]
    names = [f"{LABELS[mode]}, rank {rank}" for mode, rank in bars]
    own, wait = ([_mean_ms(_compared(rows[rank], mode), name) for mode, rank in bars] for name in ("own_s", "wait_s"))
    axes.barh(names, own, color="#5aae61", label="own work")
    axes.barh(names, wait, left=own, color="#e08214", label="waiting at the barrier")
    axes.invert_yaxis()
    axes.set(xlabel="ms")
    axes.legend(loc="lower right", fontsize=9)


def _mean_ms(rows: list[Row], name: str) -> float:
    return 1e3 * float(sum(getattr(row, name) for row in rows)) / max(1, len(rows))
