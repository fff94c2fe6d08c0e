"""`lbbsp compare FILES...`: replays recordings and shows which predictor would have lost least time on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lbbsp.comparison import Comparison, Row, Settings, Tell, as_json, compare
from lbbsp.errors import ConfigError
from lbbsp.predictors import PREDICTORS


def command(
    files: Annotated[list[Path], typer.Argument(help="Recordings: CSV, CSV.GZ or Parquet.")],
    predictors: Annotated[
        str, typer.Option(help="Names, set apart by spaces; with options as in ema:alpha=0.3.")
    ] = " ".join(PREDICTORS),
    lookahead: Annotated[int, typer.Option(help="Plans under way at any time.")] = 0,
    tested_from: Annotated[float, typer.Option(help="Share of the recording that only warms up.")] = 0.5,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose ema's alpha and arima's order on the part that warms up.")
    ] = False,
    noise: Annotated[str, typer.Option(help="Forecast errors in percent, as in 0,5,10,20,40.")] = "",
    limit: Annotated[int | None, typer.Option(help="Read so many iterations at most.")] = None,
    train_steps: Annotated[int, typer.Option(help="Training steps of narx between iterations.")] = 20,
    seed: Annotated[int, typer.Option(help="Draws the errors of --noise.")] = 0,
    claims: Annotated[
        bool, typer.Option("--claims", help="A row for the first predictor's plans with claims.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: forecast against truth, time lost.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures.")] = None,
) -> None:
    """Compare predictors on recordings of your own jobs."""
    settings = Settings(
        predictors=tuple(predictors.split()),
        lookahead=lookahead,
        tested_from=tested_from,
        train_steps=train_steps,
        limit=limit,
        tune=tune,
        noise=_shares(noise),
        seed=seed,
        claims=claims,
    )
    console = Console()
    with _progress(console) as tell:
        comparisons = compare(files, settings, tell)
    show(console, comparisons)
    if json:
        json.write_text(as_json(comparisons) + "\n")
    if plot:
        from lbbsp.plot import draw

        draw(comparisons, plot)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        raise ConfigError(f"noise {text!r}: wanted numbers set apart by commas, as in 0,5,10,20,40") from None


@contextmanager
def _progress(console: Console) -> Iterator[Tell]:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


def show(console: Console, comparisons: Sequence[Comparison]) -> None:
    """One table a recording, the fastest predictor in bold; below it the cost of forecast errors, if asked for."""
    for comparison in comparisons:
        console.print(_table(comparison))
        if comparison.noise:
            console.print(_noise_table(comparison))


def _table(comparison: Comparison) -> Table:
    world = comparison.world
    table = Table(
        title=f"{comparison.name}: {world.workers} workers, {world.iterations} iterations", title_justify="left"
    )
    for heading in ("sizes by", "RMSE, % of mean speed", "slowdown", "speedup over equal", "µs an iteration"):
        table.add_column(heading, justify="left" if heading == "sizes by" else "right")
    fastest = min((row.slowdown, name) for name, row in comparison.rows.items() if name != "clairvoyant")[1]
    for name, row in sorted(comparison.rows.items(), key=lambda item: item[1].slowdown, reverse=True):
        table.add_row(*_cells(name, row), style="bold" if name == fastest else None)
    return table


def _cells(name: str, row: Row) -> tuple[str, ...]:
    chosen = [option for option in row.spec.partition(":")[2].split(",") if option not in ("", "background=false")]
    label = f"{name} ({', '.join(chosen)})" if chosen and row.spec != name else name
    figures = (
        f"{row.rmse_pct:.2f}",
        f"{row.slowdown:.3f}",
        f"{row.speedup_vs_equal:.3f}",
        f"{row.us_per_iteration:.0f}",
    )
    return label, *("" if figure == "nan" else figure for figure in figures)


def _noise_table(comparison: Comparison) -> Table:
    table = Table(title="time lost by forecast errors", title_justify="left")
    table.add_column("error, %", justify="right")
    table.add_column("slowdown", justify="right")
    for percent, slowdown in comparison.noise.items():
        table.add_row(f"{percent:g}", f"{slowdown:.3f}")
    return table
