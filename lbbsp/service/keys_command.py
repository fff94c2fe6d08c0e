"""`lbbsp keys`: makes the keys of a manager and of its clients. Prints no secret."""

import re
from pathlib import Path
from typing import Annotated

import typer

from lbbsp.errors import ConfigError
from lbbsp.service.keys import make_client, make_server, read_clients


def command(
    folder: Annotated[Path, typer.Argument(help="Where keys lie; made if it is not there.")],
    job: Annotated[
        str | None, typer.Option(help="Make a client's key for this job, or for all that match, as in 'resnet-*'.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the client's key; default: made of --job.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show whose keys are good.")] = False,
) -> None:
    """Make keys for `lbbsp manager --keys`, and per job for LBBSP_KEYS."""
    if show:
        for caller in read_clients(folder).values():
            typer.echo(f"{caller.name}: jobs {caller.job}")
        return
    if name is not None and job is None:
        raise ConfigError(f"a client's key is for a job: lbbsp keys {folder} --name {name} --job JOB")
    if job == "":
        raise ConfigError("--job is empty: name a job, or a pattern such as 'resnet-*'")
    if job is None or not (folder / "server.secret").exists():
        typer.echo(f"{make_server(folder)}: the manager's; start it with --keys {folder}")
    if job is not None:
        path = make_client(folder, job, name or re.sub(r"[^\w.-]+", "_", job, flags=re.ASCII))
        typer.echo(f"{path}: for jobs {job}; move it to where the job runs, and set LBBSP_KEYS to its path there")
