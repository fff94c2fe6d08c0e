"""Ranks of a job as the table of jobs hears them, without sockets."""

from lbbsp.protocol import Hello, Plan, Report, encode
from lbbsp.service.table import JobTable

WORLD = 3


def hello(rank: int, **fields) -> Hello:
    usual = {"job": "j", "incarnation": "i", "world_size": WORLD, "global_batch": 90, "min_samples": 0}
    return Hello(rank=rank, **usual | {"max_samples": 90, "machine": f"m{rank}"} | fields)


def peer_of(rank: int) -> bytes:
    return b"peer %d" % rank


def say(table: JobTable, message, peer: bytes | None = None, now_s: float = 0.0) -> dict[bytes, list]:
    """Replies by peer."""
    heard: dict[bytes, list] = {}
    for to, reply in table.handle(peer or peer_of(message.rank), encode(message), now_s):
        heard.setdefault(to, []).append(reply)
    return heard


def report(rank: int, iteration: int, samples: int, speed: float, **fields) -> Report:
    usual = {"job": "j", "incarnation": "i", "own_time_s": samples / speed}
    return Report(rank=rank, iteration=iteration, samples=samples, **usual | fields)


def run(table: JobTable, speeds, iterations: int, first: int = 0, **fields) -> Plan:
    """All ranks report; the last plan."""
    sizes = [90 // len(speeds)] * len(speeds)
    plan = None
    for iteration in range(first, first + iterations):
        for rank, speed in enumerate(speeds):
            heard = say(table, report(rank, iteration, sizes[rank], speed, **fields))
        (plan,) = heard[peer_of(0)]
        sizes = list(plan.sizes)
    return plan
