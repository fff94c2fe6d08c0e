"""What the rows of a run say: the figures of the table and of the JSON file. Pure."""

from collections.abc import Callable
from statistics import fmean, median

import msgspec

from lbbsp.demo.records import COMPARE, EQUAL, FIXED, LBBSP, Row, Settings

PLAUSIBLE_EFFICIENCY = 1.05
WORTH_BALANCING = 1.1
MODES = (EQUAL, LBBSP, FIXED)

RowsOfRanks = list[list[Row]]


class PerMode(msgspec.Struct, frozen=True):
    """A figure for each of the two ways of training."""

    equal: float
    lbbsp: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What --json writes."""

    speedup: float
    """Equal sizes' iteration time over LB-BSP's."""
    ideal_speedup: float
    """Equal sizes' iteration time over the best fixed split's."""
    efficiency: float
    """speedup / ideal_speedup."""
    iteration_ms: PerMode
    """Median over blocks of a block's mean."""
    wait_share: PerMode
    """Share of its time in which the fast rank waits at the barrier, median over blocks."""
    final_loss: PerMode
    """Mean of the last ten global batches."""
    seed: int


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What the table shows beyond the result."""

    fixed_ms: float
    fixed_wait_share: float
    fixed_sizes: tuple[int, ...]
    lbbsp_sizes: tuple[int, ...]
    """Median sizes."""
    lag_one_share: float
    """Share of iterations whose sizes followed the newest reports there can be."""
    largest_loss_gap: float
    """Largest difference of the two ways' losses in any iteration."""


def summarise(rows: RowsOfRanks, settings: Settings) -> tuple[Result, Detail]:
    """The figures of a finished run, from the rows of each rank."""
    fast = rows[1 - settings.slow_rank]
    ms = {mode: 1e3 * _over_blocks(fast, mode, lambda row: row.iteration_s) for mode in MODES}
    wait = {mode: _wait_share(fast, mode) for mode in MODES}
    losses = {mode: global_losses(rows, mode) for mode in (EQUAL, LBBSP)}
    speedup, ideal = ms[EQUAL] / ms[LBBSP], ms[EQUAL] / ms[FIXED]
    result = Result(
        speedup=speedup,
        ideal_speedup=ideal,
        efficiency=speedup / ideal,
        iteration_ms=PerMode(ms[EQUAL], ms[LBBSP]),
        wait_share=PerMode(wait[EQUAL], wait[LBBSP]),
        final_loss=PerMode(*(fmean(losses[mode][-10:]) for mode in (EQUAL, LBBSP))),
        seed=settings.seed,
    )
    return result, _detail(rows, ms[FIXED], wait[FIXED], losses)


def fault(result: Result) -> str | None:
    """Why the measurement can't be right, or says little, if so."""
    if result.efficiency > PLAUSIBLE_EFFICIENCY:
        return (
            f"fault of the measurement: an efficiency of {result.efficiency:.2f} is above {PLAUSIBLE_EFFICIENCY}: "
            "LB-BSP can hardly beat the best fixed split; something else used the machine. Run it again"
        )
    if result.ideal_speedup < WORTH_BALANCING:
        return (
            f"the best fixed split is {result.ideal_speedup:.2f} times as fast as equal sizes: the workers were hardly "
            "unequal, because something else used the machine or they share one core. Little to be seen here"
        )
    return None


def global_losses(rows: RowsOfRanks, mode: str) -> list[float]:
    """The loss of each global batch: the mean over ranks, weighted by samples."""
    ranks = [[row for row in rank if row.mode == mode] for rank in rows]
    return [
        sum(row.samples * row.loss for row in pair if row.samples) / sum(row.samples for row in pair)
        for pair in zip(*ranks, strict=True)
    ]


def _detail(rows: RowsOfRanks, fixed_ms: float, fixed_wait: float, losses: dict[str, list[float]]) -> Detail:
    lags = [row.lag for row in rows[0] if row.mode == LBBSP and row.lag > 0]
    return Detail(
        fixed_ms=fixed_ms,
        fixed_wait_share=fixed_wait,
        fixed_sizes=_median_sizes(rows, FIXED),
        lbbsp_sizes=_median_sizes(rows, LBBSP),
        lag_one_share=fmean(lag == 1 for lag in lags) if lags else float("nan"),
        largest_loss_gap=max(abs(a - b) for a, b in zip(losses[EQUAL], losses[LBBSP], strict=False)),
    )


def _median_sizes(rows: RowsOfRanks, mode: str) -> tuple[int, ...]:
    first = [int(median(row.samples for row in measured(rank, mode))) for rank in rows[:-1]]
    total = sum(rank[-1].samples for rank in rows)
    return (*first, total - sum(first))


def measured(rows: list[Row], mode: str) -> list[Row]:
    """The rows that count for a mode's figures."""
    return [row for row in rows if row.mode == mode and row.phase == COMPARE and not row.settling]


def _blocks(rows: list[Row], mode: str) -> list[list[Row]]:
    blocks: dict[int, list[Row]] = {}
    for row in measured(rows, mode):
        blocks.setdefault(row.block, []).append(row)
    return list(blocks.values())


def _over_blocks(rows: list[Row], mode: str, value: Callable[[Row], float]) -> float:
    return median(fmean(value(row) for row in block) for block in _blocks(rows, mode))


def _wait_share(rows: list[Row], mode: str) -> float:
    return median(
        sum(row.wait_s for row in block) / sum(row.iteration_s for row in block) for block in _blocks(rows, mode)
    )
