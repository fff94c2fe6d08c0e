"""Pictures of a comparison: what was forecast against what came, and the time lost. Needs lbbsp[plot]."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lbbsp.comparison import Comparison
from lbbsp.errors import ConfigError

SHOWN = 150
"""Newest iterations drawn."""


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write one picture, a line of two panels for each recording.

    Raises:
        ConfigError: matplotlib is missing, or writes no such kind of file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a picture needs matplotlib: pip install 'lbbsp[plot]'") from None
    figure = Figure(figsize=(13, 4 * len(comparisons)), layout="constrained")
    axes = figure.subplots(len(comparisons), 2, squeeze=False, width_ratios=(2, 1))
    for comparison, (left, right) in zip(comparisons, axes, strict=True):
        _forecasts(comparison, left)
        _lost(comparison, right)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _forecasts(comparison: Comparison, axes: Any) -> None:
    """The worker whose speed varies most, over the newest iterations."""
    world = comparison.world
    part = slice(max(world.iterations - SHOWN, 0), None)
    worker = int(np.argmax(world.speed[part].std(0) / world.speed[part].mean(0)))
    moments = np.arange(world.iterations)[part]
    axes.plot(moments, world.speed[part, worker], color="black", linewidth=2, label="truth")
    for name, told in comparison.forecasts.items():
        axes.plot(moments, told.speed[part, worker], linewidth=1, label=name)
    axes.set(title=f"{comparison.name}: worker {world.recording.workers[worker]}")
    axes.set(xlabel="iteration", ylabel="speed, samples/s")
    axes.legend(fontsize="small")


def _lost(comparison: Comparison, axes: Any) -> None:
    rows = sorted(comparison.rows.items(), key=lambda item: -item[1].slowdown)
    lost = [100.0 * (row.slowdown - 1.0) for _, row in rows]
    bars = axes.barh([name for name, _ in rows], lost)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.margins(x=0.15)
    axes.set(title="time lost", xlabel="% over the clairvoyant plan")
