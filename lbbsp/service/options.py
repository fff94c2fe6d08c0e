"""Where the manager listens, for whom, and how long it lives."""

import errno

import msgspec
import zmq

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.service.zap import Guests

LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]", "ipc://", "inproc://")


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The manager's CURVE key, Z85 text, and the clients it lets in."""

    server_secret: str
    guests: Guests

    def __repr__(self) -> str:
        return "ServerKeys(...)"


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `lbbsp manager` was asked for."""

    bind: str = "tcp://127.0.0.1:5551"
    keys: ServerKeys | None = None
    insecure: bool = False
    """Serve beyond this machine without keys."""
    max_rate: int = 2_000
    """Messages a second that one connection may send for long."""
    max_memory_mib: int = 1_024
    """Above it all connections are closed."""
    lane: bool = True
    """Ranks on this machine may send past ZeroMQ."""
    on_straggler: str = ""
    """Command to run when a rank is flagged as slow and when that ends."""
    parent: int | None = None
    """End when this process is our parent no longer (an embedded manager); None: live on."""

    def check(self) -> None:
        """Raise ConfigError where the manager would be open to the network without having been told to."""
        if self.keys is None and not self.insecure and not self.bind.startswith(LOOPBACK):
            raise ConfigError(
                f"{self.bind} is open to the network and has no keys: anybody could move your jobs' sizes; "
                "make keys with `lbbsp keys DIR` and pass --keys DIR, bind tcp://127.0.0.1:PORT, "
                "or pass --insecure on a network you trust"
            )

    def bind_to(self, router: "zmq.Socket[bytes]", address: str) -> None:
        """Bind to `bind`, or to what it has become, or say what is wrong with it.

        Raises:
            ServiceError: taken, not ours, or no address.
        """
        router.setsockopt(zmq.IPV6, int("[" in address))
        try:
            router.bind(address)
        except (zmq.ZMQError, ValueError) as error:
            raise ServiceError(f"cannot listen on {address}: {_why(error)}") from error


def _why(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return "the port is taken, perhaps by another manager; pass --bind with another one (0 finds a free one)"
    if number == errno.EADDRNOTAVAIL or number == errno.ENODEV:
        return "no interface of this machine has that address; 127.0.0.1 works for jobs on this machine"
    return f"{error}; an address reads tcp://HOST:PORT"
