"""With keys: who has none, a wrong one or another job's reads and moves nothing; plans stay those of a twin."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from harness import ManagerProcess, Ranks, until
from tap import Tap
from zmq.utils.monitor import recv_monitor_message

from lbbsp.errors import ServiceError
from lbbsp.protocol import Bye, Look, Refused, decode_seen, decode_to_worker, encode
from lbbsp.top.asking import Asker
from lbbsp.worker.keyfile import client_curve
from lbbsp.worker.line import CurveKeys, open_line

WARM, ATTACKED = 8, 12
JOBS = {"mine": "mine*", "yours": "yours"}


def keys(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lbbsp", "keys", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    for name, pattern in JOBS.items():
        assert keys(folder, "--job", pattern, "--name", name).returncode == 0
    return folder


@pytest.fixture(scope="module")
def keyed(folder, tmp_path_factory):
    process = ManagerProcess(tmp_path_factory.mktemp("manager") / "log", options=["--keys", str(folder)])
    yield process
    process.stop()


def curve(folder: Path, name: str) -> CurveKeys:
    found = client_curve(str(folder / f"{name}.key"))
    assert found is not None
    return found


@pytest.fixture
def twins(keyed, folder, request):
    """A job under attack and its twin, both through the key for mine*."""
    made = [Ranks(keyed.address, f"mine {request.node.name} {name}", curve=curve(folder, "mine")) for name in "ab"]
    yield [job.join() for job in made]
    for job in made:
        job.close()


def compare(twins, attack) -> None:
    attacked, twin = twins
    for iteration in range(WARM + ATTACKED):
        if iteration >= WARM:
            attack(attacked)
        assert attacked.step().sizes == twin.step().sizes
    assert attacked.sizes != [45, 45], "the comparison needs plans that move"


class Stranger:
    """A line with these keys, and what its handshake came to."""

    def __init__(self, address: str, curve: CurveKeys | None) -> None:
        self.context, self.socket = open_line("tcp://127.0.0.1:1", curve)
        self.monitor = self.socket.get_monitor_socket()
        self.socket.connect(address)

    def outcome(self) -> int:
        """The first event that says how the handshake went."""
        wanted = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        }
        while self.monitor.poll(5_000):
            event = recv_monitor_message(self.monitor)["event"]
            if event in wanted:
                return int(event)
        raise AssertionError("no handshake in 5 s")

    def close(self) -> None:
        self.context.destroy(linger=0)


def new_pair(server: CurveKeys) -> CurveKeys:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return CurveKeys(server_public=server.server_public, client_public=public, client_secret=secret)


@pytest.mark.parametrize("kind", ["none", "unlisted", "for another server"])
def test_without_a_listed_key_nobody_comes_in(keyed, folder, twins, kind):
    mine = curve(folder, "mine")
    shown = {
        "none": None,
        "unlisted": new_pair(mine),
        "for another server": CurveKeys(
            server_public=zmq.curve_keypair()[0].decode(),
            client_public=mine.client_public,
            client_secret=mine.client_secret,
        ),
    }[kind]
    stranger = Stranger(keyed.address, shown)
    if kind == "for another server":  # the manager can't read its first word and hangs up
        assert not stranger.monitor.poll(500) or recv_monitor_message(stranger.monitor)["event"] != (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
    else:
        assert stranger.outcome() != zmq.EVENT_HANDSHAKE_SUCCEEDED

    def attack(job):
        assert not stranger.socket.poll(0, zmq.POLLOUT), "a stranger can't even send"
        assert not stranger.socket.poll(0)

    compare(twins, attack)
    stranger.close()


def test_another_job_s_key_moves_nothing(keyed, folder, twins):
    stranger = Stranger(keyed.address, curve(folder, "yours"))
    assert stranger.outcome() == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def attack(job):
        for rank in range(2):
            stranger.socket.send(encode(job.hello(rank)))
            stranger.socket.send(encode(job.report(rank, own_time_s=3.0)))
            stranger.socket.send(encode(Bye(**job.ids, rank=rank)))
            thresholds = {"rolling.ratio": 1.4}
            stranger.socket.send(encode(Look(job=job.ids["job"], thresholds=thresholds)))

    compare(twins, attack)
    answer = decode_to_worker(stranger.socket.recv())
    assert isinstance(answer, Refused)
    assert "'yours'" in answer.reason
    stranger.close()


def test_another_job_s_key_reads_nothing(keyed, folder, twins):
    twins[0].step()
    yours = Ranks(keyed.address, "yours", curve=curve(folder, "yours")).join()
    asker = Asker(keyed.address, curve(folder, "yours"))
    assert asker.ask(Look()).jobs == ("yours",)
    seen = asker.ask(Look(job=twins[0].ids["job"]))
    assert (seen.job, seen.jobs, seen.sizes, seen.machines) == ("", (), (), ())
    assert "'yours'" in seen.problem
    asker.close()
    yours.close()


def test_a_key_for_a_pattern_speaks_for_all_that_match(keyed, folder):
    job = Ranks(keyed.address, "mine, the 7th", curve=curve(folder, "mine")).join()
    assert sum(job.step().sizes) == 90
    asker = Asker(keyed.address, curve(folder, "mine"))
    until(lambda: job.ids["job"] in asker.ask(Look()).jobs, "the job among those that it may see")
    asker.close()
    job.close()


def test_a_peer_s_name_of_its_choice_gives_no_rights(keyed, folder, twins):
    """Whoever takes the routing id of another connection speaks with its own key all the same."""
    context, line = open_line("tcp://127.0.0.1:1", curve(folder, "yours"))
    line.setsockopt(zmq.ROUTING_ID, b"chosen")
    line.connect(keyed.address)
    assert line.poll(5_000, zmq.POLLOUT)

    def attack(job):
        for rank in range(2):
            line.send(encode(job.report(rank, own_time_s=3.0)))

    compare(twins, attack)
    context.destroy(linger=0)


def test_a_session_recorded_on_the_wire_can_t_be_played_again(keyed, folder, twins):
    tap = Tap(keyed.address)
    victim = Ranks(tap.address, "mine, recorded", speeds=[1000.0], curve=curve(folder, "mine")).join()
    for _ in range(3):
        victim.step()
    recorded = bytes(tap.said)
    assert len(recorded) > 500

    def attack(job):
        with socket.create_connection(tap.target) as line:
            line.settimeout(5.0)
            line.sendall(recorded)
            while line.recv(65_536):
                pass  # until the manager hangs up

    compare(twins, attack)
    assert victim.step().version == 4, "the victim's session goes on, and heard none of it"
    victim.close()
    tap.close()


def test_a_frame_played_again_within_its_own_session_ends_the_session_and_moves_nothing(keyed, folder):
    tap = Tap(keyed.address)
    victim = Ranks(tap.address, "mine, doubled", speeds=[1000.0], curve=curve(folder, "mine")).join()
    victim.step()
    before = len(tap.said)
    victim.step()
    frame = bytes(tap.said[before:])
    assert tap.up is not None
    tap.up.sendall(frame)
    until(lambda: victim.clients[0].away, "the end of the session", victim.pump)
    plan = victim.join().step()
    assert plan.based_on_iteration == victim.iteration - 1
    victim.close()
    tap.close()


def test_a_key_that_is_taken_away_is_good_no_more_and_a_new_one_at_once(keyed, folder):
    assert keys(folder, "--job", "guest").returncode == 0
    guest = Ranks(keyed.address, "guest", curve=curve(folder, "guest")).join()
    guest.step()
    (folder / "clients" / "guest.toml").unlink()
    until(lambda: "2 clients may come in" in keyed.log(), "the manager's look at the folder")
    old = guest.clients[0].plan()
    for rank, client in enumerate(guest.clients):
        client.report(guest.report(rank))
    until(lambda: "key taken away" in keyed.log(), "the refusal", guest.pump)
    assert guest.clients[0].plan() == old
    stranger = Stranger(keyed.address, curve(folder, "guest"))
    assert stranger.outcome() != zmq.EVENT_HANDSHAKE_SUCCEEDED
    stranger.close()
    guest.close()


def test_who_floods_is_hung_up_on_and_its_key_opens_no_door_for_a_while(folder, tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--keys", str(folder), "--max-rate", "50"])
    job = Ranks(manager.address, "mine, at its pace", curve=curve(folder, "mine")).join()
    flooder = Stranger(manager.address, curve(folder, "yours"))
    assert flooder.outcome() == zmq.EVENT_HANDSHAKE_SUCCEEDED
    for _ in range(200):
        flooder.socket.send(encode(Look(job="yours")))
    until(lambda: "hung up on" in manager.log(), "the end of its patience")
    assert flooder.outcome() == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    for _ in range(20):
        job.step()
    flooder.close()
    job.close()
    manager.stop()


def test_top_finds_its_key_in_the_environment(keyed, folder, twins, monkeypatch):
    twins[0].step()
    command = [sys.executable, "-m", "lbbsp", "top", twins[0].ids["job"], "--once", "--manager", keyed.address]
    environment = os.environ | {"LBBSP_KEYS": str(folder / "mine.key")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert "global batch 90" in done.stdout, done.stderr


def test_doctor_with_a_key_only_looks(keyed, folder):
    command = [sys.executable, "-m", "lbbsp", "doctor", "--manager", keyed.address]
    environment = os.environ | {"LBBSP_KEYS": str(folder / "mine.key")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert "answers our key" in done.stdout
    assert "doctor" not in keyed.log()


def test_without_its_key_an_asker_is_told_of_keys(keyed):
    asker = Asker(keyed.address)
    with pytest.raises(ServiceError, match="LBBSP_KEYS"):
        asker.ask(Look(), patience_s=0.5)
    asker.close()


def test_with_keys_a_network_is_served_without_further_ado(folder, tmp_path):
    command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://0.0.0.0:0", "--keys", str(folder)]
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(command, stderr=out)
    until(lambda: b"listening on" in (tmp_path / "log").read_bytes(), "listening")
    process.terminate()
    assert process.wait(20) == 0
    assert b"WARNING" not in (tmp_path / "log").read_bytes()


def test_seen_of_a_stranger_s_look_holds_no_names(keyed, folder, twins):
    stranger = Stranger(keyed.address, curve(folder, "yours"))
    assert stranger.outcome() == zmq.EVENT_HANDSHAKE_SUCCEEDED
    stranger.socket.send(encode(Look()))
    assert stranger.socket.poll(5_000)
    assert not any(name.startswith("mine") for name in decode_seen(stranger.socket.recv()).jobs)
    stranger.close()
