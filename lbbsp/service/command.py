"""`lbbsp manager`: reads what was asked for, configures logging, serves, ends with one line.

An embedded manager gets its keys and its parent's id on standard input and answers with its address.
"""

import gc
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lbbsp.core.detectors import chosen
from lbbsp.errors import ConfigError, ServiceError
from lbbsp.prompt import be_prompt
from lbbsp.protocol import EmbeddedOrders, EmbeddedReady
from lbbsp.service import logs
from lbbsp.service.admission import Admission
from lbbsp.service.config import Config, LogFormat, LogLevel, gather
from lbbsp.service.daemon import Daemon
from lbbsp.service.job import sensors_every, sizer_maker
from lbbsp.service.journal import Journal
from lbbsp.service.keeper import Keeper
from lbbsp.service.keys import ANYBODY, read_clients, read_server
from lbbsp.service.metrics_http import MetricsServer
from lbbsp.service.options import LOOPBACK, ManagerOptions, ServerKeys
from lbbsp.service.record import Recorder, RecordOptions, recording
from lbbsp.service.table import JobTable
from lbbsp.service.zap import Guests

log = logging.getLogger("lbbsp.manager")
DEFAULT = Config()
SWITCH_S = 1e-3
"""Threads that draw metrics hold the interpreter for this long at most while the poll loop wants it."""


def command(
    config: Annotated[str | None, typer.Option(help="TOML file; flags and LBBSP_MANAGER_* go before it.")] = None,
    bind: Annotated[
        str | None, typer.Option(help=f"Where to listen; port 0 finds a free one. Default {DEFAULT.bind}.")
    ] = None,
    keys: Annotated[str | None, typer.Option(help="Folder that `lbbsp keys` made: only its clients come in.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Serve a network without keys.")] = None,
    predictor: Annotated[str | None, typer.Option(help=f"What forecasts speeds. Default {DEFAULT.predictor}.")] = None,
    rule: Annotated[
        str | None, typer.Option(help="Sizes by: auto (default), speed, adaptive, leader-straggler, linear.")
    ] = None,
    detectors: Annotated[
        str | None,
        typer.Option(help=f"What finds slow ranks: history,robust; none. Default {DEFAULT.detectors}."),
    ] = None,
    on_straggler: Annotated[
        str | None, typer.Option(help="Command to run when a rank is flagged as slow and when it is not any more.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="HOST:PORT for Prometheus: /metrics, /health, /ready. Default none.")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="What to log. Default info.")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="Lines for people or for machines.")] = None,
    max_jobs: Annotated[int | None, typer.Option(help=f"Default {DEFAULT.max_jobs}.")] = None,
    max_ranks: Annotated[int | None, typer.Option(help=f"Of one job; default {DEFAULT.max_ranks}.")] = None,
    max_rate: Annotated[
        int | None, typer.Option(help=f"Messages a second of one connection; default {DEFAULT.max_rate}.")
    ] = None,
    max_memory_mib: Annotated[
        int | None, typer.Option(help=f"Above it all connections are closed; default {DEFAULT.max_memory_mib}.")
    ] = None,
    lane: Annotated[
        bool | None, typer.Option("--lane/--no-lane", help="Ranks on this machine send past ZeroMQ. Default they do.")
    ] = None,
    journal: Annotated[
        str | None, typer.Option(help="File that keeps what was learnt across restarts. Default none.")
    ] = None,
    forget_after_s: Annotated[
        float | None,
        typer.Option(help=f"Forget a job that nobody speaks for so long; default {DEFAULT.forget_after_s:.0f}."),
    ] = None,
    record: Annotated[str | None, typer.Option(help="Folder: record each job into a file there.")] = None,
    record_part_mib: Annotated[
        float | None,
        typer.Option(help=f"A file that has grown to this is closed. Default {DEFAULT.record_part_mib:g}."),
    ] = None,
    record_most_mib: Annotated[
        float | None, typer.Option(help=f"Of all files, then the oldest go. Default {DEFAULT.record_most_mib:g}.")
    ] = None,
    record_parquet: Annotated[
        bool | None, typer.Option("--record-parquet", help="Closed files become Parquet.")
    ] = None,
    embedded: Annotated[bool, typer.Option("--embedded", hidden=True)] = False,
) -> None:
    """Serve jobs: reports in, batch sizes out. Ends on SIGTERM."""
    flags = {name: value for name, value in locals().items() if name not in ("config", "embedded")}
    settings = gather(flags, os.environ, config)
    logs.configure(settings.log_level, settings.log_format, "lbbsp manager (embedded)" if embedded else "lbbsp manager")
    serve(settings, embedded)


def serve(settings: Config, embedded: bool = False) -> None:
    """Serve until a signal."""
    options = _embedded_options(settings) if embedded else _options(settings)
    options.check()
    _allow_files()
    table = JobTable(
        sizer_maker(settings.predictor, settings.rule),
        1 if settings.record else sensors_every(settings.predictor),
        Admission(settings.max_jobs, settings.max_ranks),
    )
    table.forget_after_s, table.detectors = settings.forget_after_s, chosen(settings.detectors)
    keeper = _keeper(settings, table, embedded)
    recorder = _recorder(settings, table)
    daemon = Daemon(options, table, recorder, keeper=keeper)
    metrics = _metrics(settings, daemon, embedded)
    be_prompt()
    gc.freeze()  # what is imported by now stays: no collection need look at it again
    try:
        _announce(daemon.address, embedded)
        if metrics is not None:
            sys.setswitchinterval(SWITCH_S)
            log.info("metrics on http://%s/metrics", metrics.place)
        log.info("stopped by %s", daemon.run())
    finally:
        if metrics is not None:
            metrics.close()
        daemon.close()
        if keeper is not None:
            keeper.close()
        if recorder is not None:
            recorder.close()


def _keeper(settings: Config, table: JobTable, embedded: bool) -> Keeper | None:
    if not settings.journal:
        return None
    try:
        return Keeper(table, Journal(Path(settings.journal)), time.perf_counter)
    except (ConfigError, ServiceError) as error:
        if not embedded:
            raise
        log.warning("%s; what is learnt is not kept for a restart", error)
        return None


def _metrics(settings: Config, daemon: Daemon, embedded: bool) -> MetricsServer | None:
    if not settings.metrics:
        return None
    try:
        return MetricsServer(settings.metrics, daemon.desk.ask, daemon.alive)
    except (ConfigError, ServiceError) as error:
        if not embedded:
            raise
        log.warning("%s; this job's figures are not served", error)
        return None


def _recorder(settings: Config, table: JobTable) -> Recorder | None:
    if not settings.record:
        return None
    folder, part, most = Path(settings.record), settings.record_part_mib, settings.record_most_mib
    return recording(RecordOptions(folder, part, most, settings.record_parquet), table)


def _options(settings: Config) -> ManagerOptions:
    if settings.insecure and not settings.keys and not settings.bind.startswith(LOOPBACK):
        log.warning("%s is served without keys: whoever reaches it can move every job's sizes", settings.bind)
    return ManagerOptions(
        bind=settings.bind,
        keys=_keys(Path(settings.keys)) if settings.keys else None,
        insecure=settings.insecure,
        max_rate=settings.max_rate,
        max_memory_mib=settings.max_memory_mib,
        on_straggler=settings.on_straggler,
        lane=settings.lane,
    )


def _keys(folder: Path) -> ServerKeys:
    guests = Guests(read_clients(folder), folder)
    return ServerKeys(server_secret=read_server(folder).secret, guests=guests)


def _embedded_options(settings: Config) -> ManagerOptions:
    """Rank 0 is usually pinned to a core; we may use all that this machine lets us."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=EmbeddedOrders)
    guests = Guests(dict.fromkeys(orders.clients, ANYBODY))
    keys = ServerKeys(server_secret=orders.server_secret, guests=guests)
    return ManagerOptions(
        bind=settings.bind, keys=keys, max_rate=settings.max_rate, parent=orders.parent, lane=settings.lane
    )


def _allow_files() -> None:
    """As many connections as this process may have at all; the usual soft limit of 1,024 is too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _announce(address: str, embedded: bool) -> None:
    if embedded:
        sys.stdout.buffer.write(msgspec.json.encode(EmbeddedReady(address=address)) + b"\n")
        sys.stdout.flush()
    else:
        log.info("listening on %s", address)
