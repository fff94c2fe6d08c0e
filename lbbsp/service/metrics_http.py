"""The port for Prometheus and for probes: /metrics, /health, /ready. Threads of its own; the poll loop is asked.

A few requests at once, each with little time, so that whoever is slow here harms nobody. Seconds.
"""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.service.figures import Figures

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ANSWER_S = 2.0
"""The poll loop has this long to answer."""
REQUEST_S = 3.0
MOST_AT_ONCE = 4
Ask = Callable[[float], Figures | None]


class MetricsServer:
    """Listens when made.

    Args:
        place: HOST:PORT; port 0 finds a free one.
        ask: for figures, with a time to wait.
        alive: whether the poll loop turns.

    Raises:
        ConfigError: prometheus-client is not installed, or the place is none.
        ServiceError: the place can't be bound.
    """

    def __init__(self, place: str, ask: Ask, alive: Callable[[], bool]) -> None:
        host, port = _split(place)
        application = _application(ask, alive)
        try:
            self._server = _server(host, port)
        except OSError as error:
            raise ServiceError(f"cannot serve metrics on {place}: {error.strerror}; pass another --metrics") from error
        self._server.set_app(application)
        self.place = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="lbbsp-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind without asking a name server who we are."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, where there is room; else hang up."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hung up or was too slow is no news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log no requests."""


def _server(host: str, port: int) -> _Server:
    kind = _Server6 if ":" in host else _Server
    return kind((host, port), _Handler)


def _application(ask: Ask, alive: Callable[[], bool]) -> "WSGIApplication":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        from lbbsp.service.metrics import Manager
    except ImportError as error:
        raise ConfigError("--metrics needs prometheus-client: pip install 'lbbsp[metrics]'") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Manager(lambda: ask(ANSWER_S)))
    ProcessCollector(registry=registry)
    metrics: WSGIApplication = make_wsgi_app(registry)

    def application(environment: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        match environment.get("PATH_INFO"):
            case "/metrics":
                return metrics(environment, start)
            case "/health":
                return _say(start, alive(), b"the manager's loop does not turn\n")
            case "/ready":
                return _say(start, ask(ANSWER_S) is not None, b"the manager does not answer\n")
            case _:
                start("404 Not Found", [("Content-Type", "text/plain")])
                return [b"there are /metrics, /health and /ready\n"]

    return application


def _say(start: "StartResponse", well: bool, otherwise: bytes) -> Iterable[bytes]:
    start("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
    return [b"ok\n" if well else otherwise]


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"--metrics can't be {place!r}: give HOST:PORT, as in 127.0.0.1:9551")
    return host.strip("[]"), int(port)
