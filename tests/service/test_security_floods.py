"""Who floods, crawls or sends giants harms nobody else: a real job beside gets every plan, and memory stays flat."""

import socket
import struct
import subprocess
import sys
import time

import psutil
import pytest
import zmq
from harness import PATIENCE_S, ManagerProcess, Ranks, until
from table_ranks import hello

from lbbsp.protocol import Hello, Welcome, decode_to_worker, encode
from lbbsp.service.admission import MOST_OF_ONE
from lbbsp.service.router import MAX_FRAME_BYTES

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
READY = b"\x04" + bytes([len(READY) - 2]) + READY[2:]
GIBIBYTE = 2**30
FLOOD = """
import sys, time, zmq
from lbbsp.protocol import Bye, Hello, Look, Report, encode
kind, address = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(address)
def hello(job):
    return encode(Hello(job=job, incarnation="i", rank=0, world_size=1, global_batch=9, min_samples=0, max_samples=9))
number = 0
print("ready", flush=True)
while True:
    number += 1
    if kind == "hellos": frames = [hello(f"flood {number}")]
    elif kind == "one job": frames = [hello("flood")]
    elif kind == "looks": frames = [encode(Look(job=f"{number % 1000}"))]
    elif kind == "garbage": frames = [bytes([number % 256]) * (number % 15000)]
    elif kind == "parts": frames = [b"x"] * 100
    else: frames = [encode(Report(job="flood", incarnation="i", rank=0, iteration=number, samples=9, own_time_s=1.0))]
    socket.send_multipart(frames)
"""


def place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def memory_mib(manager) -> float:
    return psutil.Process(manager.process.pid).memory_info().rss / 2**20


@pytest.fixture
def flooders(manager):
    made: list[subprocess.Popen[bytes]] = []

    def start(kind: str, count: int) -> None:
        for _ in range(count):
            command = [sys.executable, "-c", FLOOD, kind, manager.address]
            made.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            assert made[-1].stdout is not None
            made[-1].stdout.readline()

    yield start
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", ["hellos", "one job", "looks", "garbage", "parts", "reports"])
def test_beside_a_flood_at_full_speed_every_iteration_gets_its_plan(manager, flooders, kind):
    job = Ranks(manager.address, "real").join()
    job.step()
    flooders(kind, 2)
    until(lambda: "rejected" in manager.log(), "the flood at the manager") if kind != "looks" else time.sleep(0.5)
    before = memory_mib(manager)
    for iteration in range(1, 60):
        assert job.step().version == iteration + 1, "a plan was lost"
    late = Ranks(manager.address, "late").join()
    late.step()
    assert memory_mib(manager) - before < 512
    assert not any(client.dropped for client in job.clients)
    late.close()
    job.close()


def test_a_flood_of_hellos_opens_few_jobs(manager, flooders):
    flooders("hellos", 1)
    until(lambda: "the limit for one" in manager.log(), "the limit")
    assert manager.log().count(" starts: ") == MOST_OF_ONE


def raw_peer(manager) -> socket.socket:
    """A peer of the manager's that has shaken hands byte by byte."""
    return shake_hands(manager.address)


def shake_hands(address: str) -> socket.socket:
    line = socket.create_connection(place(address))
    line.settimeout(10.0)
    line.sendall(GREETING)
    received = b""
    while len(received) < 64:
        received += line.recv(64 - len(received))
    line.sendall(READY)
    line.recv(4096)
    return line


def test_the_handwritten_handshake_is_one(manager):
    line = raw_peer(manager)
    frame = encode(hello(0, job="by hand", world_size=1))
    line.sendall(struct.pack(">BB", 0, len(frame)) + frame)
    answer = line.recv(4096)
    assert isinstance(decode_to_worker(answer[2:]), Welcome)
    line.close()


def hung_up(line: socket.socket) -> bool:
    try:
        line.sendall(bytes(65_536))
        return False
    except OSError:
        return True


@pytest.mark.parametrize("size", [GIBIBYTE, 2**63 - 1, MAX_FRAME_BYTES + 1])
def test_a_giant_s_peer_is_hung_up_on_before_it_is_kept(manager, size):
    job = Ranks(manager.address, "real").join()
    before = memory_mib(manager)
    line = raw_peer(manager)
    line.sendall(b"\x02" + struct.pack(">Q", size))
    until(lambda: hung_up(line), "the end of the line")
    assert memory_mib(manager) - before < 16
    assert sum(job.step().sizes) == 90
    job.close()
    line.close()


def test_the_longest_honest_frames_fit():
    longest = Hello(
        job="j" * 256, incarnation="i" * 256, rank=65_535, world_size=65_536, global_batch=2**31 - 1,
        min_samples=2**31 - 1, max_samples=2**31 - 1, mode="m" * 256, machine="m" * 256, device="d" * 256,
        device_kind="k" * 256, sensors=("s" * 100,) * 64,
    )  # fmt: skip
    assert len(encode(longest)) < MAX_FRAME_BYTES


def test_slow_loris_is_hung_up_on_and_new_ranks_come_in_meanwhile(tmp_path):
    manager = ManagerProcess(tmp_path / "log", constants={"lbbsp.service.router.HANDSHAKE_MS": 1_500})
    job = Ranks(manager.address, "real").join()
    slow = [socket.create_connection(place(manager.address)) for _ in range(300)]
    began_s = time.perf_counter()
    sent = 0
    open_ones = list(slow)
    while open_ones and time.perf_counter() - began_s < PATIENCE_S:
        still = []
        for line in open_ones:
            try:
                line.sendall(GREETING[sent % 60 : sent % 60 + 1])
                still.append(line)
            except OSError:
                line.close()
        open_ones = still
        sent += 1
        assert sum(job.step().sizes) == 90
        if sent == 2:
            late = Ranks(manager.address, "late").join()
            late.step()
            late.close()
        time.sleep(0.1)
    assert not open_ones, f"{len(open_ones)} half-open connections are still held"
    job.close()
    manager.stop()


def test_a_peer_that_never_reads_is_not_written_to_without_end(manager):
    job = Ranks(manager.address, "real").join()
    deaf = raw_peer(manager)
    before = memory_mib(manager)
    look = encode(hello(0, job="deaf", world_size=1, machine="m" * 200))
    frame = struct.pack(">BQ", 2, len(look)) + look
    deaf.settimeout(0.5)
    try:
        for _ in range(100_000):
            deaf.sendall(frame)
    except ConnectionError:
        pass  # who says so much is hung up on
    assert memory_mib(manager) - before < 64
    assert sum(job.step().sizes) == 90
    job.close()
    deaf.close()


def test_random_multipart_is_counted_not_read(manager):
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.connect(manager.address)
    peer.send_multipart([encode(hello(0, job="parts", world_size=1)), b"more"])
    until(lambda: "2 frames came" in manager.log(), "the count")
    peer.send(encode(hello(0, job="whole", world_size=1)))
    assert peer.poll(5_000)
    assert "'parts' starts" not in manager.log()
    context.destroy(linger=0)


PAUSED = """
import sys, time, zmq
from lbbsp.service.options import ManagerOptions
from lbbsp.service.rejections import Rejections
from lbbsp.service.router import Router
router = Router(zmq.Context(), ManagerOptions(bind="tcp://127.0.0.1:0"), Rejections())
print(router.address, flush=True)
sys.stdin.readline()
taken = 0
while router.socket.poll(500):
    taken += router.receive(time.perf_counter()) is not None
print(taken, flush=True)
"""


def test_a_peer_that_goes_while_its_messages_wait_ends_no_manager():
    """Held back by a bound of libzmq's, a heartbeat that falls due would abort the process: there is no such bound."""
    command = [sys.executable, "-c", PAUSED]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    lines = [shake_hands(address) for _ in range(5)]
    frame = encode(hello(0, job="gone", world_size=1))
    for line in lines:
        line.setblocking(False)
        try:
            for _ in range(20_000):
                line.send(struct.pack(">BQ", 2, len(frame)) + frame)
        except BlockingIOError:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()  # with a reset
    time.sleep(3.0)
    said, _ = process.communicate("go on\n", timeout=30)
    assert process.returncode == 0
    assert int(said) > 100
