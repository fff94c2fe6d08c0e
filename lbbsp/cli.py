"""The command line: `lbbsp COMMAND`. A command is a function `command` in a module of its own.

To add one: write the module, list it in COMMANDS. Only the module that is asked for is imported, so that a
manager starts fast; a module imports what is heavy (torch, plots) inside its function.
"""

import os
import sys
from collections.abc import Iterable
from importlib import import_module

# Nothing here multiplies matrices; idle pools of threads would only cost.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import typer

from lbbsp import __version__
from lbbsp.errors import LbbspError

COMMANDS = {
    "manager": "lbbsp.service.command",
    "keys": "lbbsp.service.keys_command",
    "compare": "lbbsp.compare",
    "demo": "lbbsp.demo.command",
    "doctor": "lbbsp.doctor.command",
    "top": "lbbsp.top.command",
    "stragglers": "lbbsp.top.stragglers",
}


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 1."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    names = [asked] if asked in COMMANDS else list(COMMANDS)
    try:
        build(names)()
    except LbbspError as error:
        sys.stderr.write(f"lbbsp: {error}\n")
        sys.exit(1)


def build(names: Iterable[str]) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="lbbsp",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in names:
        app.command(name)(import_module(COMMANDS[name]).command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_print_version),
) -> None:
    """Batch sizes that let unequal workers reach the barrier together."""
