"""Older peers and this version understand one another: frozen frames, and the first protocol as it was."""

import importlib.util
import json
import math
from pathlib import Path

import msgspec
import pytest
import zmq
from harness import Ranks, until

from lbbsp.protocol import OLDEST, PROTOCOL, Hello, Plan, Report, Seen, Welcome, decode_seen, decode_to_manager, encode
from lbbsp.service import agreement
from lbbsp.worker.client import Client

FRAMES = Path(__file__).parent / "frames"
SETS = {path.stem: json.loads(path.read_text()) for path in sorted(FRAMES.glob("*.json"))}


def load_first():
    spec = importlib.util.spec_from_file_location("frozen_first", FRAMES / "first.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


first = load_first()


class Peer:
    """One rank of an older job."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(address)

    def hear(self, decode):
        assert self.socket.poll(5_000), "no answer"
        return decode(self.socket.recv())

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def peers(shared_manager):
    made = [Peer(shared_manager.address) for _ in range(2)]
    yield made
    for peer in made:
        peer.close()


def equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


@pytest.mark.parametrize("name", SETS)
def test_a_job_of_frozen_frames_is_served(name, manager):
    plans, seen = [], None
    peers = [Peer(manager.address) for _ in range(2)]
    for one in SETS[name]["to_manager"]:
        says, peer = one["says"], peers[one["says"].get("rank", 0)]
        peer.socket.send(bytes.fromhex(one["frame"]))
        if says["type"] == "hello":
            assert isinstance(peer.hear(msgspec.msgpack.Decoder(Welcome).decode), Welcome)
        elif says["type"] == "look":
            seen = peer.hear(decode_seen)
        elif says["type"] == "report" and says["rank"] == 1:
            plans.append(peers[0].hear(msgspec.msgpack.Decoder(Plan).decode))
    assert [plan.based_on_iteration for plan in plans] == list(range(len(plans)))
    assert all(sum(plan.sizes) == 90 for plan in plans)
    assert plans[-1].sizes[1] > 55, "sizes follow what the frozen reports say"
    assert seen is None or seen.job == "frozen"
    until(lambda: "job 'frozen' has ended" in manager.log(), "the end that the byes mean")
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("way", ["to_manager", "to_worker"])
def test_frozen_frames_say_today_what_they_said(name, way):
    reader = msgspec.msgpack.Decoder(decode_type(way)).decode
    for one in SETS[name][way]:
        says = msgspec.to_builtins(reader(bytes.fromhex(one["frame"])))
        for field, value in one["says"].items():
            read = list(says[field]) if isinstance(value, list) else says[field]
            assert equal(value, read), field


def decode_type(way: str):
    from lbbsp import protocol

    return protocol.ToManager if way == "to_manager" else protocol.ToWorker | Seen


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("way", ["to_manager", "to_worker"])
def test_what_this_version_says_holds_all_that_older_readers_look_for(name, way):
    for one in SETS[name][way]:
        ours = msgspec.convert(one["says"], decode_type(way), strict=False)
        frame = msgspec.msgpack.decode(encode(ours))
        for field, value in one["says"].items():
            assert equal(frame[field], value), field


def test_a_client_of_this_version_takes_an_older_manager_s_frames():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    hello = Hello(
        job="frozen", incarnation="first", rank=0, world_size=2, global_batch=90, min_samples=1, max_samples=90
    )
    client = Client(f"tcp://127.0.0.1:{port}", hello)
    until(lambda: router.poll(10), "the hello", client.pump)
    peer, frame = router.recv_multipart()
    assert first.decode_to_manager(frame).rank == 0, "the older manager reads our hello"
    client.report(Report(job="frozen", incarnation="first", rank=0, iteration=0, samples=45, own_time_s=0.1))
    for one in SETS["first"]["to_worker"]:
        if one["says"]["type"] in ("welcome", "plan"):
            router.send_multipart([peer, bytes.fromhex(one["frame"])])
    until(lambda: client.plan() is not None, "the plan", client.pump)
    assert (client.plan().sizes, client.away, client.ignored) == ((30, 60), False, 0)
    client.close()
    context.destroy(linger=0)


def test_the_first_protocol_s_own_reader_reads_a_manager_of_today(peers):
    ids = {"job": "older", "incarnation": "i"}
    for rank, peer in enumerate(peers):
        older = first.Hello(**ids, rank=rank, world_size=2, global_batch=90, min_samples=1, max_samples=90)
        peer.socket.send(first.encode(older))
        assert peer.hear(first.decode_to_worker) == first.Welcome(**ids, rank=rank, protocol=1)
    for iteration in range(8):
        for rank, peer in enumerate(peers):
            report = first.Report(**ids, rank=rank, iteration=iteration, samples=45, own_time_s=0.045 / (1 + rank))
            peer.socket.send(first.encode(report))
        plan = peers[0].hear(first.decode_to_worker)
        assert (plan.based_on_iteration, sum(plan.sizes)) == (iteration, 90)


def test_the_first_protocol_s_manager_reads_a_report_of_today():
    report = Report(
        job="j", incarnation="i", rank=1, iteration=7, samples=45, own_time_s=0.5, cost=9.0, phases_s=(0.1, 0.2, 0.15)
    )
    older = first.decode_to_manager(encode(report))
    assert (older.rank, older.iteration, older.samples, older.own_time_s) == (1, 7, 45, 0.5)
    assert decode_to_manager(first.encode(older)).phases_s == (), "and this version reads what an older rank says"


def test_a_newer_peer_s_unknown_fields_are_passed_over(shared_manager):
    job = Ranks(shared_manager.address, "newer").join()
    for _ in range(8):
        for rank, client in enumerate(job.clients):
            newer = msgspec.to_builtins(job.report(rank)) | {"colour": "green", "depth": {"a": [1, 2]}}
            client.socket.send(msgspec.msgpack.encode(newer))
            client.report(job.report(rank))  # a duplicate: the manager took the newer one first
        until(job._planned, "the plan", job.pump)
        job.iteration += 1
    assert job.clients[0].plan().sizes[1] > 55
    until(lambda: "rejected (stale)" in shared_manager.log() or "rejected (duplicate)" in shared_manager.log(), "that")
    job.close()


@pytest.mark.parametrize(
    ("manager", "oldest_here", "worker", "oldest_there", "spoken"),
    [
        (1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 1, 2, 1, 1), (2, 1, 2, 1, 2), (3, 2, 2, 1, 2), (2, 1, 3, 2, 2),
        (3, 2, 1, 1, None), (1, 1, 3, 2, None), (1, 1, 0, 0, None), (5, 4, 7, 6, None),
    ],
)  # fmt: skip
def test_neighbouring_versions_interoperate_and_others_are_refused_by_both_names(
    monkeypatch, manager, oldest_here, worker, oldest_there, spoken
):
    monkeypatch.setattr(agreement, "PROTOCOL", manager)
    monkeypatch.setattr(agreement, "OLDEST", oldest_here)
    hello = Hello(
        job="j", incarnation="i", rank=0, world_size=1, global_batch=9, min_samples=0, max_samples=9,
        protocol=worker, oldest=oldest_there,
    )  # fmt: skip
    reason = agreement.unsound(hello)
    if spoken is None:
        assert f"protocol {worker} came" in str(reason)
        assert f"speaks {manager}" in str(reason)
    else:
        assert reason is None
        assert agreement.spoken(hello) == spoken


def test_this_version_speaks_its_own_protocol_and_the_one_before():
    assert max(1, PROTOCOL - 1) == OLDEST
    assert f'"protocol": {PROTOCOL}' in (FRAMES / "step6.json").read_text().replace(": ", ": "), (
        "PROTOCOL has changed: freeze frames of the new one beside those of the old (frames/freeze.py)"
    )


def test_every_frame_that_a_worker_may_send_is_frozen():
    frozen = {one["says"]["type"] for kept in SETS.values() for one in kept["to_manager"]}
    assert {"hello", "report", "bye", "look"} == frozen
    for kept in SETS.values():
        for one in kept["to_manager"]:
            assert decode_to_manager(bytes.fromhex(one["frame"]))
