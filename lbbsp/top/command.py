"""`lbbsp top [JOB]`: a job's ranks, live, in a terminal."""

import sys
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.protocol import Look, Seen
from lbbsp.top.asking import Asker, address_of, the_job
from lbbsp.top.keys import Keys
from lbbsp.top.screen import Screen

PIPED_WIDTH = 160


def command(
    job: Annotated[str | None, typer.Argument(help="Default: the only one there is.")] = None,
    manager: Annotated[str | None, typer.Option(help="Default LBBSP_MANAGER, else tcp://127.0.0.1:5551.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between looks.", min=0.2, max=60.0)] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
) -> None:
    """Show a job's ranks, live: batch, own time, wait, speed, who is slow and why."""
    asker, screen = Asker(address_of(manager)), Screen()
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    try:
        name = the_job(asker, job)
        if once:
            seen = asker.ask(Look(job=name))
            screen.history.add(seen)
            console.print(screen.draw(seen, 12 + len(seen.sizes)))
            return
        if not (sys.stdin.isatty() and console.is_terminal):
            raise ConfigError("lbbsp top needs a terminal: use --once, or `lbbsp stragglers --json` in scripts")
        _run(asker, name, console, screen, every)
    finally:
        asker.close()


def _run(asker: Asker, name: str, console: Console, screen: Screen, every_s: float) -> None:
    seen: Seen | None = None
    trouble = ""
    due_s = 0.0
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if time.perf_counter() >= due_s:
                due_s = time.perf_counter() + every_s
                try:
                    seen, trouble = _look(asker, name, seen)
                except ServiceError as error:
                    trouble = str(error)
                if seen is not None:
                    screen.history.add(seen)
            live.update(_drawn(screen, seen, trouble, console.height), refresh=True)
            for key in keys.wait(max(0.0, due_s - time.perf_counter())):
                if not screen.press(key, max(1, console.height - 12)):
                    return


def _look(asker: Asker, name: str, before: Seen | None) -> tuple[Seen | None, str]:
    """The newest answer, or the one before with what is the matter."""
    seen = asker.ask(Look(job=name), patience_s=1.0)
    return (seen, "") if seen.job else (before, f"job {name} has ended, or its ranks are not all there yet")


def _drawn(screen: Screen, seen: Seen | None, trouble: str, height: int) -> RenderableType:
    parts: list[RenderableType] = [Text(trouble, style="bold yellow")] if trouble else []
    if seen is not None:
        parts.append(screen.draw(seen, height - len(parts)))
    return Group(*parts)
