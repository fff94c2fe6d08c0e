"""Bad input changes nothing: a job under attack gets the very plans of its twin that is left alone."""

import socket
import struct

import msgspec
import pytest
import zmq
from harness import until

from lbbsp.protocol import Bye, Hello, Plan, Refused, Report, Unknown, decode_to_worker, encode

WARM = 8
ATTACKED = 12


class Peer:
    """A stranger at the manager's door, who says what the test likes."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(address)

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def hear(self, timeout_s: float = 5.0):
        assert self.socket.poll(1000 * timeout_s), "no answer"
        return decode_to_worker(self.socket.recv())

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def peer(shared_manager):
    peer = Peer(shared_manager.address)
    yield peer
    peer.close()


def altered(report: Report, **fields) -> bytes:
    """A report with fields that no honest client could encode."""
    return msgspec.msgpack.encode(msgspec.to_builtins(report) | fields)


BAD_FIELDS = [
    {"own_time_s": value} for value in (float("nan"), 0.0, -1.0, 1e30, float("inf"), "soon", None, 1e-9, 9e5)
] + [
    {"samples": value} for value in (-1, 2**40, 10**6, 1.5, None)
] + [
    {"rank": value} for value in (2, -1, 65_535, 2**63, "0")
] + [
    {"iteration": value} for value in (-1, 2**63, 2**61, 0, "x")
] + [
    {"draws": 0}, {"wait_s": float("nan")}, {"wait_s": -1.0}, {"sensors": [1.0] * 1000}, {"sensors": 3},
    {"job": ""}, {"job": "x" * 10_000}, {"incarnation": "an earlier one"}, {"type": "plan"}, {"type": "nothing"},
]  # fmt: skip


def twins(ranks):
    """Two jobs with the same reports."""
    return ranks(" attacked").join(), ranks(" twin").join()


def compare(attacked, twin, attack) -> None:
    """Run both; the attack comes at each iteration from the 8th on, and must not show."""
    for iteration in range(WARM + ATTACKED):
        if iteration >= WARM:
            attack(attacked)
        assert attacked.step().sizes == twin.step().sizes
    assert attacked.sizes != [45, 45], "the comparison needs plans that move"


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda fields: str(fields)[:40])
def test_a_bad_field_in_a_rank_s_own_report_never_moves_a_plan(ranks, fields):
    attacked, twin = twins(ranks)

    def attack(job):
        job.clients[1].socket.send(altered(job.report(1), **fields))

    compare(attacked, twin, attack)


def duplicate(job):
    if job.iteration:
        earlier = job.report(1, job.iteration - 1, own_time_s=5.0)
        job.clients[1].report(earlier)


def reordered(job):
    job.clients[1].report(job.report(1, max(0, job.iteration - 3), own_time_s=0.5))


def replayed(job):
    for iteration in range(job.iteration):
        job.clients[0].report(job.report(0, iteration))


def twice_at_once(job):
    job.clients[1].report(job.report(1))
    job.clients[1].report(job.report(1, own_time_s=2.0))


@pytest.mark.parametrize("attack", [duplicate, reordered, replayed, twice_at_once])
def test_reports_that_come_again_or_late_never_move_a_plan(ranks, attack):
    compare(*twins(ranks), attack)


def test_another_job_s_ids_never_move_a_plan(ranks):
    attacked, twin = twins(ranks)
    stranger = ranks(" stranger").join()

    def attack(job):
        for rank in range(2):
            stranger.clients[0].socket.send(encode(job.report(rank, own_time_s=3.0)))
            stranger.clients[0].socket.send(encode(Bye(**job.ids, rank=rank)))

    compare(attacked, twin, attack)


def test_a_report_through_another_peer_is_asked_for_a_hello(ranks, peer):
    job = ranks().join()
    peer.say(encode(job.report(1)))
    assert peer.hear() == Unknown(**job.ids)


def test_a_stranger_s_reports_are_answered_a_few_times_only(peer):
    for iteration in range(200):
        peer.say(encode(Report(job="no", incarnation="i", rank=0, iteration=iteration, samples=1, own_time_s=1.0)))
    assert peer.hear() == Unknown(job="no", incarnation="i")
    answers = 1
    while peer.socket.poll(300):
        peer.socket.recv()
        answers += 1
    assert answers <= 5


DEEP = msgspec.msgpack.encode({"type": "report", "job": "j", "deep": None})[:-1] + b"\x91" * 5000
NO_TEXT = msgspec.msgpack.encode({"type": "report", "job": "jj"})[:-2] + b"\xff\xfe"
RANDOM = [DEEP, NO_TEXT]
RANDOM += [b"", b"\x00", b"\xc1", b"\x81", b"\xff" * 100, bytes(range(256)), b"{}", b"\x80", b"\x91" * 5000]


def test_random_bytes_never_move_a_plan(ranks, peer):
    attacked, twin = twins(ranks)

    def attack(job):
        for frame in RANDOM:
            peer.say(frame)
            job.clients[0].socket.send(frame)
        peer.say(b"a", b"b", b"c")
        peer.say(encode(Plan(**job.ids, version=9**9, based_on_iteration=9**9, sizes=(90, 0))))

    compare(attacked, twin, attack)


def test_bytes_that_are_no_zeromq_never_move_a_plan(ranks, shared_manager):
    attacked, twin = twins(ranks)
    host, _, port = shared_manager.address.removeprefix("tcp://").rpartition(":")
    half_open = [socket.create_connection((host, int(port))) for _ in range(20)]

    def attack(_):
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: lbbsp\r\n\r\n")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"\xff" + struct.pack(">Q", 2**40) + b"\x7f" + b"x" * 1000)

    compare(attacked, twin, attack)
    for line in half_open:
        line.close()


def test_a_giant_frame_ends_the_line_of_its_sender_alone(ranks, shared_manager):
    attacked, twin = twins(ranks)
    giant = Peer(shared_manager.address)
    compare(attacked, twin, lambda job: giant.say(b"x" * 2_000_000))
    giant.close()


def hello(**fields) -> Hello:
    usual = {"job": "refusals", "incarnation": "i", "rank": 0, "world_size": 2, "global_batch": 90}
    return Hello(**usual | {"min_samples": 1, "max_samples": 90} | fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"protocol": 99, "oldest": 98}, ["protocol 99", "down to 98", "speaks 1"]),
        ({"protocol": 0}, ["protocol 0", "speaks 1"]),
        ({"rank": 2}, ["rank 2", "0 to 1"]),
        ({"min_samples": 80, "max_samples": 50}, ["min_samples 80", "max_samples 50"]),
        ({"mode": "guess"}, ["'guess'", "balance, observe"]),
    ],
)
def test_a_hello_that_cannot_be_met_is_refused_with_the_value_and_what_works(peer, fields, words):
    peer.say(encode(hello(**fields)))
    answer = peer.hear()
    assert isinstance(answer, Refused)
    assert all(word in answer.reason for word in words), answer.reason


def test_a_hello_of_another_shape_is_refused_and_both_versions_named(peer):
    raw = msgspec.to_builtins(hello()) | {"protocol": 7, "global_batch": "many"}
    peer.say(msgspec.msgpack.encode(raw))
    answer = peer.hear()
    assert isinstance(answer, Refused)
    assert "protocol 7" in answer.reason
    assert "global_batch" in answer.reason


@pytest.mark.parametrize(
    ("field", "value"), [("world_size", 3), ("global_batch", 60), ("granularity", 2), ("mode", "observe")]
)
def test_a_rank_that_disagrees_with_rank_0_is_told_which_value_and_what_works(ranks, peer, request, field, value):
    job = ranks()
    odd = msgspec.structs.replace(job.hello(1), **{field: value})
    job.clients[1].hello_again(odd)
    for client in job.clients:
        client.pump(0.05)
    until(lambda: job.clients[1].refused is not None, "the refusal", job.pump)
    assert field in job.clients[1].refused
    assert str(value) in job.clients[1].refused
    assert f"{getattr(job.hello(0), field)} would work" in job.clients[1].refused
    job.clients[1].hello_again(job.hello(1))
    job.join().step()


def test_impossible_bounds_are_refused_to_all_with_what_works(ranks):
    job = ranks(max_samples=40)
    until(lambda: all(client.refused for client in job.clients), "refusals", job.pump)
    assert all("90" in client.refused for client in job.clients)


def test_an_earlier_incarnation_never_moves_a_plan(ranks, peer):
    earlier = ranks().join()
    for _ in range(WARM):
        earlier.step()
    later = ranks(incarnation="second").join()
    twin = ranks(" twin").join()
    for _ in range(WARM):
        twin.step()
    twin_later = ranks(" twin", incarnation="second").join()
    for _ in range(ATTACKED):
        earlier.iteration += 1
        for rank in range(2):
            earlier.clients[rank].report(earlier.report(rank, own_time_s=2.0))
        assert later.step().sizes == twin_later.step().sizes


def test_an_incarnation_that_was_replaced_is_refused(ranks):
    earlier = ranks().join()
    earlier.step()
    later = ranks(incarnation="second").join()
    later.step()
    earlier.clients[0].report(earlier.report(0))
    until(lambda: earlier.clients[0].refused is not None, "the refusal", earlier.pump)
    assert "replaced by a newer one" in earlier.clients[0].refused
