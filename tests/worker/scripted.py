"""The manager's end of a client's line, played by a test; real sockets."""

import time

import zmq

from lbbsp.protocol import Hello, Plan, Report, decode_to_manager, encode
from lbbsp.worker.client import Client

IDS = {"job": "j", "incarnation": "i"}
HELLO = Hello(**IDS, rank=0, world_size=2, global_batch=100, min_samples=1, max_samples=100)


class Clock:
    """Real seconds, and those that a test adds."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.added_s


class Script:
    """The manager's end of the line, played by the test."""

    def __init__(self, address: str = "tcp://127.0.0.1:*") -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(address)
        self.address = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.peer = b""

    def take(self, client: Client, kind: type):
        """The next message of this kind, while the client pumps."""
        deadline_s = time.perf_counter() + 10
        while time.perf_counter() < deadline_s:
            client.pump()
            if self.router.poll(1):
                self.peer, frame = self.router.recv_multipart()
                message = decode_to_manager(frame)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")

    def quiet(self, client: Client, timeout_s: float = 0.1) -> bool:
        """True if the client has nothing to say."""
        client.pump()
        return not self.router.poll(1000 * timeout_s)

    def say(self, message) -> None:
        self.router.send_multipart([self.peer, message if isinstance(message, bytes) else encode(message)])

    def close(self) -> None:
        self.context.destroy(linger=0)


def plan(based_on: int, version: int = 1, sizes=(60, 40), **ids) -> Plan:
    return Plan(**(IDS | ids), version=version, based_on_iteration=based_on, sizes=sizes)


def report(iteration: int) -> Report:
    return Report(**IDS, rank=0, iteration=iteration, samples=50, own_time_s=0.05)


def until(condition, client: Client) -> None:
    deadline_s = time.perf_counter() + 10
    while not condition():
        client.pump(0.01)
        assert time.perf_counter() < deadline_s, "did not come in 10 s"
