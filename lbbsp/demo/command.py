"""lbbsp demo: runs it, shows it, writes its table, figure and JSON. What is heavy is imported when asked for."""

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lbbsp.demo import controller, machine, report
from lbbsp.demo.display import RowsOfRanks, display
from lbbsp.demo.records import WORKERS, Settings
from lbbsp.demo.report import Detail, Result
from lbbsp.errors import ConfigError

LEAST_BATCH = 32


class OptimizerName(StrEnum):
    """What --optimizer takes."""

    sgd = "sgd"
    adamw = "adamw"


class FrameworkName(StrEnum):
    """What --framework takes."""

    torch = "torch"
    tensorflow = "tensorflow"


class SlowdownName(StrEnum):
    """What --slowdown takes."""

    auto = "auto"
    busy = "busy"
    pauses = "pauses"


def command(
    framework: Annotated[FrameworkName, typer.Option(help="What trains.")] = FrameworkName.torch,
    optimizer: Annotated[OptimizerName, typer.Option(help="What updates the weights.")] = OptimizerName.sgd,
    slow_rank: Annotated[int, typer.Option(min=0, max=WORKERS - 1, help="Which worker is slowed down.")] = 1,
    float64: Annotated[bool, typer.Option("--float64", help="Train in double precision, on smaller images.")] = False,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each way of training.")] = 6,
    block_iterations: Annotated[int, typer.Option(min=5, help="Iterations of a block.")] = 34,
    global_batch: Annotated[int, typer.Option(help="Samples of one iteration over both workers.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of the model and of the order of the data.")] = 1,
    slowdown: Annotated[
        SlowdownName, typer.Option(help="A busy process on the worker's core, or pauses of the worker (SIGSTOP).")
    ] = SlowdownName.auto,
    json: Annotated[Path | None, typer.Option(help="Write the result here.")] = None,
    figure: Annotated[Path, typer.Option(help="Write the figure here (PNG).")] = Path("demo-output/demo.png"),
    records: Annotated[Path | None, typer.Option(help="Keep every iteration's row in this folder.")] = None,
) -> None:
    """Train one model twice on two unequal workers, with equal sizes and with LB-BSP, and compare.

    Takes about two minutes. Trains a small network on scikit-learn's handwritten digits; nothing is downloaded.
    """
    machine.require_libraries(framework.value)
    if global_batch < LEAST_BATCH or global_batch % WORKERS:
        raise ConfigError(f"global batch {global_batch}: the demo needs an even one of at least {LEAST_BATCH}")
    plan = machine.plan(slow_rank, slowdown.value)
    settings = Settings(
        seed=seed,
        global_batch=global_batch,
        blocks=blocks,
        block_iterations=block_iterations,
        optimizer=optimizer.value,
        float64=float64,
        framework=framework.value,
        slow_rank=slow_rank,
        cores=plan.cores,
    )
    console = Console()
    began_s = time.perf_counter()
    rows = run(console, settings, plan, records)
    console.print(f"Trained for {time.perf_counter() - began_s:.0f} s.", highlight=False)
    result, detail = report.summarise(rows, settings)
    show(console, result, detail, settings)
    write(console, rows, result, plan.label, figure, json)


def run(console: Console, settings: Settings, plan: machine.Plan, keep: Path | None) -> RowsOfRanks:
    """Train, showing how it goes; the rows of each rank."""
    console.print(
        f"Two {settings.framework} workers, one thread each, train a small CNN on handwritten digits "
        f"({settings.optimizer}, global batch {settings.global_batch}); {plan.label}. About two minutes, nothing is "
        "downloaded."
    )
    others = machine.others_at_work()
    if others is not None:
        console.print(f"Something else keeps this machine busy (load {others:.1f}): it will blur the figures.")
    rows: RowsOfRanks = [[] for _ in range(WORKERS)]
    with controller.started(settings, plan, keep) as training, display(console) as shown:
        for new in training.rows():
            for known, more in zip(rows, new, strict=True):
                known += more
            shown.add(new)
    return rows


def show(console: Console, result: Result, detail: Detail, settings: Settings) -> None:
    """The table, and what stands below it."""
    equal_s, lbbsp_s, fixed_s = (
        ms / 1e3 for ms in (result.iteration_ms.equal, result.iteration_ms.lbbsp, detail.fixed_ms)
    )
    table = Table(title=f"global batch {settings.global_batch}, seed {settings.seed}, {settings.optimizer}")
    for name in ("", "equal sizes", "LB-BSP", "best fixed split"):
        table.add_column(name, justify="right" if name else "left")
    half = (settings.global_batch // WORKERS,) * WORKERS
    for name, *values in (
        ("sizes (median)", *(" + ".join(map(str, sizes)) for sizes in (half, detail.lbbsp_sizes, detail.fixed_sizes))),
        ("iteration, ms", *(f"{1e3 * seconds:.1f}" for seconds in (equal_s, lbbsp_s, fixed_s))),
        ("samples/s", *(f"{settings.global_batch / seconds:.0f}" for seconds in (equal_s, lbbsp_s, fixed_s))),
        (
            "fast rank waits",
            *(f"{share:.1%}" for share in (result.wait_share.equal, result.wait_share.lbbsp, detail.fixed_wait_share)),
        ),
        ("speedup", "1", f"{result.speedup:.2f}", f"{result.ideal_speedup:.2f}"),
        ("efficiency", "", f"{result.efficiency:.2f}", "1"),
        ("loss, last 10", f"{result.final_loss.equal:.4f}", f"{result.final_loss.lbbsp:.4f}", ""),
    ):
        table.add_row(name, *values)
    console.print(table)
    console.print(
        f"Sizes followed the newest reports (lag 1) in {detail.lag_one_share:.0%} of LB-BSP's iterations. The two "
        f"ways' losses differ by at most {detail.largest_loss_gap:.1e} in any iteration.",
        highlight=False,
    )
    fault = report.fault(result)
    if fault:
        console.print(fault, style="bold red", highlight=False)


def write(console: Console, rows: RowsOfRanks, result: Result, label: str, figure: Path, json: Path | None) -> None:
    """The files."""
    from lbbsp.demo.figure import draw

    draw(rows, result, label, figure)
    console.print(f"Figure: {os.path.relpath(figure)}", highlight=False, soft_wrap=True)
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        console.print(f"Result: {os.path.relpath(json)}", highlight=False, soft_wrap=True)
