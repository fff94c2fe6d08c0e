"""`lbbsp stragglers JOB`: who is slow, since when and why, as lines or as JSON; also changes thresholds."""

import json
from typing import Annotated, Any

import typer

from lbbsp.errors import ConfigError
from lbbsp.protocol import Flag, Look, Seen
from lbbsp.top.asking import Asker, address_of, the_job


def command(
    job: Annotated[str | None, typer.Argument(help="Default: the only one there is.")] = None,
    manager: Annotated[str | None, typer.Option(help="Default LBBSP_MANAGER, else tcp://127.0.0.1:5551.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a threshold first: rolling.ratio=1.4; may be repeated.")
    ] = None,
) -> None:
    """Who is slow, since when and why."""
    asker = Asker(address_of(manager))
    try:
        name = the_job(asker, job)
        seen = asker.ask(Look(job=name, thresholds=thresholds(change or [])))
    finally:
        asker.close()
    if seen.problem:
        raise ConfigError(seen.problem)
    if as_json:
        typer.echo(json.dumps(figures(seen), indent=2))
    else:
        typer.echo("\n".join(lines(seen)))


def thresholds(pairs: list[str]) -> dict[str, float]:
    """Of `detector.option=value`.

    Raises:
        ConfigError: it reads otherwise.
    """
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--set {pair!r}: wanted DETECTOR.THRESHOLD=NUMBER, as in rolling.ratio=1.4") from None
    return found


def figures(seen: Seen) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "job": seen.job,
        "iteration": seen.iteration,
        "iteration_time_s": seen.iteration_time_s,
        "wait_share": seen.wait_share,
        "stragglers": [_flag(flag) for flag in seen.flags if flag.slow],
        "given_more": [_flag(flag) for flag in seen.flags if not flag.slow],
        "thresholds": seen.thresholds,
    }


def lines(seen: Seen) -> list[str]:
    """As people read it."""
    told = [line(flag, seen.iteration) for flag in seen.flags]
    return told or [f"job {seen.job!r}, iteration {seen.iteration}: no rank is slow"]


def line(flag: Flag, iteration: int) -> str:
    """One rank."""
    if not flag.slow:
        return f"rank {flag.rank}: not slow, {flag.cause} ({flag.evidence})"
    how = "silent" if "silent" in flag.detectors else f"{flag.slowdown:.2f} times slower than usual"
    kind = "lasting" if flag.lasting else "transient"
    age = max(0, iteration - flag.since)
    return (
        f"rank {flag.rank}: {how} for {age} iterations ({kind}; by {', '.join(flag.detectors)}): "
        f"{flag.cause} ({flag.evidence})"
    )


def _flag(flag: Flag) -> dict[str, Any]:
    shown = {
        name: getattr(flag, name) for name in ("rank", "since", "slowdown", "lasting", "detectors", "cause", "evidence")
    }
    return shown | {"slowdown": flag.slowdown if flag.slowdown == flag.slowdown else None}
