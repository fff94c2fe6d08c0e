"""The virtual clock against cases worked out by hand, loads and recordings, and what communication costs."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schemes import loads
from bench.schemes.asp import Asp
from bench.schemes.bsp import Bsp
from bench.schemes.clock import Clock
from bench.schemes.dbw import rising
from bench.schemes.network import Server, Wire
from bench.schemes.speeds import Schedule
from lbbsp.errors import ConfigError

BURSTS = loads.bursts(1, 100.0, seed=3)


def test_events_happen_in_order_and_cancelled_ones_do_not():
    clock, seen = Clock(), []
    clock.at(2.0, lambda: seen.append("b"))
    clock.at(1.0, lambda: seen.append("a"))
    clock.at(2.0, lambda: seen.append("c"))
    clock.at(1.5, lambda: seen.append("never")).cancel()
    while clock.step():
        pass
    assert seen == ["a", "b", "c"]
    with pytest.raises(ValueError, match="already 2"):
        clock.at(1.0, lambda: None)


def test_bsp_by_hand_over_a_server(short, constant):
    """8 samples + 2 of fixed work at 10, 20, 40, 50 /s: 1 s for the slowest; its push 0.1 + 0.5 s, the way back
    0.1 + 4 * 0.5 s.
    """
    wire = Wire(latency_s=0.1, bytes_per_s=2.0, model_bytes=1.0)
    shown = short(Bsp, constant(10, 20, 40, 50), wire=wire, iterations=3)
    updates = [point[0] for point in shown.curve]
    # 0.2, 0.25, 0.5 and 1.0 s; with 0.1 s they come in at 0.3, 0.35, 0.6, 1.1 s and take 0.5 s each over one link:
    # 0.8, 1.3, 1.8, 2.3 s
    assert updates == pytest.approx([2.3, 2.3 + 2.1 + 2.3, 2 * (2.3 + 2.1) + 2.3])


def test_bsp_by_hand_over_a_ring(short, constant):
    """1 s for the slowest, then 2 * 3 steps of 0.1 s + 0.5 / 4 s; nothing on the way back."""
    wire = Wire(latency_s=0.1, bytes_per_s=2.0, model_bytes=1.0, kind="ring")
    shown = short(Bsp, constant(10, 20, 40, 50), wire=wire, iterations=3)
    assert shown.iteration_ms == pytest.approx(1e3 * (1.0 + 6 * (0.1 + 0.125)))
    assert shown.waiting_share == pytest.approx(1 - (1.0 + 0.5 + 0.25 + 0.2) / (4 * 2.35))


def test_asp_by_hand(short, constant, free):
    """10 units of work at 10 and 20 /s: pushes at 0.5, 1, 1, 1.5, 2, 2 ... s."""
    shown = short(Asp, constant(10, 20), workers=2, global_batch=16, wire=free, iterations=6)
    assert shown.world.clock.now_s == pytest.approx(4.0)
    assert shown.iterations == 6
    assert shown.iteration_ms == pytest.approx(1e3 * 4.0 / 6)


def test_a_task_that_spans_pieces_ends_where_its_work_is_done():
    speeds = Schedule([np.array([0.0, 1.0, 3.0])], [np.array([10.0, 5.0])])
    assert speeds.end_s(0, 0.5, 10.0) == pytest.approx(2.0)
    assert speeds.progress(0, 0.5, 2.0, 1.0) == pytest.approx(0.5)
    assert speeds.end_s(0, 2.0, 5.0 + 20.0 + 10.0) == pytest.approx(3.0 + 3.0 + 1.0)
    with pytest.raises(ValueError, match="worker 0"):
        Schedule([np.array([0.0, 1.0])], [np.array([0.0])])


@given(st.floats(0, 3000), st.floats(0.01, 500), st.floats(0, 1))
def test_work_adds_up(start_s, work, part):
    speeds = BURSTS
    end_s = speeds.end_s(0, start_s, work)
    between_s = speeds.end_s(0, start_s, part * work)
    assert start_s <= between_s <= end_s + 1e-9
    assert speeds.end_s(0, between_s, (1 - part) * work) == pytest.approx(end_s, abs=1e-6)
    assert speeds.progress(0, start_s, end_s, between_s) == pytest.approx(part, abs=1e-5)


@pytest.mark.parametrize("name", loads.LOADS)
def test_loads_follow_their_seed_alone(name):
    one, again, other = (loads.LOADS[name](3, 100.0, seed) for seed in (0, 0, 1))
    ends = [[speeds.end_s(worker, 5.0, 40.0) for worker in range(3)] for speeds in (one, again, other)]
    assert ends[0] == ends[1] != ends[2]


@pytest.mark.parametrize("name", ["seconds", "bursts"])
def test_neighbours_are_there_as_often_as_said(name):
    speeds = loads.LOADS[name](20, 100.0, 0)
    counts = [speeds.neighbours(worker, time_s) for worker in range(20) for time_s in np.linspace(0, 899, 500)]
    assert np.mean(counts) == pytest.approx(3 * 3 / 11, rel=0.1)
    assert set(counts) == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_recording_plays_its_rows_in_order(tmp_path, suffix):
    path = tmp_path / f"one{suffix}"
    text = "# a comment\nworker,iteration,samples,time_s\nw0,0,8,1.0\nw0,1,18,1.0\nw1,0,8,2.0\n"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    speeds = loads.recording(path, 3, fixed_samples=2.0)
    assert speeds.end_s(0, 0.0, 10.0) == pytest.approx(1.0)
    assert speeds.end_s(0, 1.0, 20.0) == pytest.approx(2.0)
    assert speeds.end_s(1, 0.0, 10.0) == pytest.approx(2.0)
    assert speeds.end_s(2, 0.0, 30.0) == pytest.approx(2.0)
    assert np.isnan(speeds.neighbours(0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [("worker,samples\n0,1\n", "wanted worker"), ("worker,iteration,samples,time_s\n0,0,1,0\n", "above 0"),
     ("worker,iteration,samples,time_s\n", "no rows"), ("worker,iteration,samples,time_s\n0,0,x,1\n", "wanted worker")],
)  # fmt: skip
def test_a_bad_recording_is_named(tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        loads.recording(tmp_path / "bad.csv", 2, 0.0)
    with pytest.raises(ConfigError, match="no recording"):
        loads.recording(tmp_path / "none.csv", 2, 0.0)


def test_task_times_are_drawn_as_said():
    assert np.mean(_factors("exponential")) == pytest.approx(2.0, rel=0.05)
    assert min(_factors("pareto")) >= 1.0
    assert np.mean(np.array(_factors("straggler")) > 3) == pytest.approx(1 / 8, rel=0.1)
    with pytest.raises(ConfigError, match="known: exponential"):
        loads.drawn("normal", 1, 1.0, 0)


def _factors(kind):
    speeds = loads.drawn(kind, 1, 1.0, 0)
    return [speeds.end_s(0, 0.0, 1.0) for _ in range(10_000)]


def test_the_servers_link_is_shared():
    clock = Clock()
    server = Server(Wire(latency_s=0.1, bytes_per_s=1.0, model_bytes=1.0), clock)
    assert [server.push_s(), server.push_s()] == pytest.approx([1.1, 2.1])
    assert [server.pull_s(), server.pull_s()] == pytest.approx([1.1, 2.1])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_times_by_rank_never_fall_and_keep_their_mean(values):
    raised = rising(np.array(values), np.ones(len(values)))
    assert (np.diff(raised) >= -1e-9).all()
    assert raised.mean() == pytest.approx(np.mean(values), abs=1e-9)
