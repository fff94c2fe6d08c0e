"""`lbbsp doctor`: what a job needs of this machine and of its manager, each finding with a fix.

Prints one line a finding and exits with 1 where something stops a job. Changes nothing.
"""

import logging
from typing import Annotated

import typer

from lbbsp.doctor.finding import Finding, Level
from lbbsp.doctor.machine import machine_findings
from lbbsp.doctor.manager import manager_findings

SIGNS = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.PROBLEM: "PROBLEM"}


def command(
    manager: Annotated[
        str | None, typer.Option(help="Address to try; default LBBSP_MANAGER, else a manager is started and ended.")
    ] = None,
) -> None:
    """Check versions, cores, limits, sensors and the manager."""
    logging.getLogger("lbbsp").addHandler(logging.NullHandler())
    problems = 0
    for findings in (machine_findings(), manager_findings(manager)):
        for finding in findings:
            problems += finding.level is Level.PROBLEM
            typer.echo(line(finding))
    typer.echo(f"{problems} problem(s)" if problems else "nothing stands in a job's way")
    raise typer.Exit(1 if problems else 0)


def line(finding: Finding) -> str:
    """One finding as printed."""
    fix = f"\n          fix: {finding.fix}" if finding.fix else ""
    return f"{SIGNS[finding.level]} {finding.name}: {finding.text}{fix}"
