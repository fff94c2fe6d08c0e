"""`lbbsp manager`: reads what was asked for, configures logging, serves, ends with one line.

An embedded manager gets its keys and its parent's id on standard input and answers with its address.
"""

import gc
import logging
import os
import sys
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from lbbsp.protocol import EmbeddedOrders, EmbeddedReady
from lbbsp.service.daemon import Daemon
from lbbsp.service.job import sensors_every, sizer_maker
from lbbsp.service.options import ManagerOptions, ServerKeys
from lbbsp.service.table import JobTable

log = logging.getLogger("lbbsp.manager")


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def command(
    bind: Annotated[str, typer.Option(help="Where to listen; port 0 finds a free one.")] = "tcp://127.0.0.1:5551",
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve a network without keys.")] = False,
    predictor: Annotated[str, typer.Option(help="What forecasts speeds.")] = "ema",
    rule: Annotated[str, typer.Option(help="Sizes by: auto, speed, adaptive, leader-straggler, linear.")] = "auto",
    on_straggler: Annotated[
        str, typer.Option(help="Command to run when a rank is flagged as slow and when it is not any more.")
    ] = "",
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.INFO,
    embedded: Annotated[bool, typer.Option("--embedded", hidden=True)] = False,
) -> None:
    """Serve jobs: reports in, batch sizes out. Ends on SIGTERM."""
    _configure_logging(log_level, embedded)
    given = ManagerOptions(bind=bind, insecure=insecure, on_straggler=on_straggler)
    options = _embedded_options(bind) if embedded else given
    options.check()
    daemon = Daemon(options, JobTable(sizer_maker(predictor, rule), sensors_every(predictor)))
    gc.freeze()  # what is imported by now stays: no collection need look at it again
    try:
        _announce(daemon.address, embedded)
        log.info("stopped by %s", daemon.run())
    finally:
        daemon.close()


def _configure_logging(level: LogLevel, embedded: bool) -> None:
    who = "lbbsp manager (embedded)" if embedded else "lbbsp manager"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=f"%(asctime)s {who} %(levelname)s %(message)s")


def _embedded_options(bind: str) -> ManagerOptions:
    """Rank 0 is usually pinned to a core; we may use all that this machine lets us."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=EmbeddedOrders)
    keys = ServerKeys(server_secret=orders.server_secret, allowed=frozenset(orders.clients))
    return ManagerOptions(bind=bind, keys=keys, parent=orders.parent)


def _announce(address: str, embedded: bool) -> None:
    if embedded:
        sys.stdout.buffer.write(msgspec.json.encode(EmbeddedReady(address=address)) + b"\n")
        sys.stdout.flush()
    else:
        log.info("listening on %s", address)
