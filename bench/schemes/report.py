"""Tables and plots of a comparison. Knows nothing of how the figures came about."""

from pathlib import Path
from typing import Any

from rich.table import Table

from bench.schemes.world import Setup

Curve = list[tuple[float, int, float, float]]


def table(load: str, rows: dict[str, dict[str, Any]], setup: Setup, seeds: list[int]) -> Table:
    """One load: a row a scheme."""
    wire = setup.wire
    title = (f"{load}: {setup.workers} workers, {setup.global_batch} samples a batch, {setup.iterations} batches, "
             f"{setup.shards} shards, {wire.kind} ({wire.latency_s * 1e3:g} ms, {wire.bytes_per_s * 8e-9:g} Gb/s, "
             f"{wire.model_bytes * 1e-6:g} MB), seeds {' '.join(map(str, seeds))}")  # fmt: skip
    shown = Table(title=title, title_justify="left")
    shown.add_column("scheme")
    for name in ("iteration [ms]", "ms a batch", "wasted [%]", "waiting [%]", f"to loss {setup.target_loss:g} [s]",
                 "batches to it", "accuracy [%]"):  # fmt: skip
        shown.add_column(name, justify="right")
    for scheme, row in rows.items():
        batches = row["samples_to_target"] and row["samples_to_target"] / setup.global_batch
        shown.add_row(
            scheme, _figure(row["iteration_ms"], 1), _figure(row["batch_ms"], 1), _figure(100 * row["wasted_share"], 1),
            _figure(100 * row["waiting_share"], 1), _figure(row["time_to_target_s"], 1), _figure(batches, 0),
            _figure(100 * row["final_accuracy"], 2),
        )  # fmt: skip
    return shown


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def plot(path: Path, curves: dict[str, dict[str, Curve]], setup: Setup) -> None:
    """Training loss over virtual time, one panel a load, to a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(6 * len(curves), 5), squeeze=False)
    for panel, (load, schemes) in zip(panels[0], curves.items(), strict=True):
        for number, (scheme, curve) in enumerate(schemes.items()):
            style = ("-", "--", ":")[number // 10 % 3]
            panel.plot([point[0] for point in curve], [point[2] for point in curve], style, label=scheme, lw=1.2)
        panel.axhline(setup.target_loss, color="grey", lw=0.6)
        panel.set(title=load, xlabel="virtual time [s]", ylabel="training loss", yscale="log")
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_participation(path: Path, counts: dict[str, Any], iterations: int = 60) -> None:
    """p_j(k): neighbours that each worker averaged with, over iterations; counts: name -> (iterations, workers)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(counts), 1, figsize=(10, 2.2 * len(counts)), squeeze=False)
    for panel, (name, values) in zip(panels[:, 0], counts.items(), strict=True):
        shown = panel.imshow(values[:iterations].T, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0)
        figure.colorbar(shown, ax=panel, label="p_j(k)")
        panel.set(title=name, ylabel="worker j")
    panels[-1, 0].set_xlabel("iteration k")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
