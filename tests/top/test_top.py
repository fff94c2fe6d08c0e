"""What a manager says of a job reaches people and scripts: over the wire, as lines, JSON and a screen."""

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from lbbsp.cli import main
from lbbsp.errors import ConfigError, ServiceError
from lbbsp.protocol import Flag, Hello, Look, Report, Seen, decode_seen, encode
from lbbsp.service.job import sizer_maker
from lbbsp.service.table import JobTable
from lbbsp.service.watch import Watch
from lbbsp.top.asking import Asker
from lbbsp.top.keys import split
from lbbsp.top.screen import KEYS, Screen
from lbbsp.top.stragglers import figures, lines, thresholds

RANKS = 5


def job_of(*detectors, until=60):
    """A job of which rank 3 becomes twice as slow at iteration 40."""
    made = JobTable(sizer_maker("ema"))
    made.detectors = detectors
    for rank in range(RANKS):
        hello = Hello(
            job="j", incarnation="i", rank=rank, world_size=RANKS, global_batch=160, min_samples=1, max_samples=160,
            machine=f"m{rank}",
        )  # fmt: skip
        made.handle(b"%d" % rank, encode(hello), 0.0)
    run(made, 0, 40)
    run(made, 40, until - 40, slow=3)
    return made


@pytest.fixture
def table():
    return job_of("history")


def run(table, first, iterations, slow=-1, **fields):
    for k in range(first, first + iterations):
        for rank in range(RANKS):
            own_s = 0.1 * (2.0 if rank == slow else 1.0)
            report = Report(
                job="j", incarnation="i", rank=rank, iteration=k, samples=32, own_time_s=own_s, wait_s=0.01, **fields
            )
            table.handle(b"%d" % rank, encode(report), 0.1 * k)
        table.catch_up()


def look(table, now_s=100.0, **fields) -> Seen:
    ((_, seen),) = table.handle(b"stranger", encode(Look(**fields)), now_s)
    return decode_seen(encode(seen))


def test_anybody_who_is_connected_may_look_and_joins_nothing(table):
    seen = look(table, job="j")
    assert (seen.world_size, seen.global_batch, len(seen.own_time_s)) == (RANKS, 160, RANKS)
    (flag,) = (flag for flag in seen.flags if flag.slow)
    assert (flag.rank, flag.since, flag.slowdown) == (3, 40, pytest.approx(2.0, rel=0.01))
    assert sorted(table.jobs["j"].roster("i").peers) == list(range(RANKS))


def test_a_manager_s_detectors_are_those_of_its_jobs():
    (flag,) = (flag for flag in look(job_of("robust", "threshold"), job="j").flags if flag.slow)
    assert flag.detectors == ("robust", "threshold")
    without = job_of()
    Watch(without).look(6.0)
    seen = look(without, job="j")
    assert [flag for flag in seen.flags if flag.slow] == []
    assert seen.own_time_s[3] == pytest.approx(0.2)


def test_a_flag_s_evidence_says_where_in_the_step_the_time_went():
    """As `lbbsp top` and `lbbsp stragglers --json` show it; an older rank's reports say nothing of it."""
    made = job_of("history", until=40)
    run(made, 40, 1, phases_s=(0.0, 0.03, 0.06))
    run(made, 41, 8, slow=3)
    run(made, 49, 1, slow=3, phases_s=(0.1, 0.03, 0.06))
    run(made, 50, 12, slow=3)
    (flag,) = (flag for flag in look(made, job="j").flags if flag.slow)
    assert "of what was added 100% between draw and forward" in flag.evidence
    (older,) = (flag for flag in look(job_of("history"), job="j").flags if flag.slow)
    assert "of what was added" not in older.evidence


def test_a_look_at_no_job_names_the_jobs(table):
    assert look(table).jobs == ("j",)
    assert look(table, job="none").job == ""


def test_a_part_of_the_ranks_can_be_asked_for(table):
    seen = look(table, job="j", first=3, most=2)
    assert (seen.first, seen.machines, len(seen.sizes)) == (3, ("m3", "m4"), 2)


def test_answers_are_kept_for_a_moment(table):
    before = look(table, now_s=100.0, job="j")
    run(table, 60, 1)
    assert look(table, now_s=100.1, job="j").iteration == before.iteration
    assert look(table, now_s=100.3, job="j").iteration == 60


def test_thresholds_change_live_and_mistakes_are_named(table):
    assert look(table, job="j", thresholds={"history.ratio": 1.9}).thresholds["history.ratio"] == 1.9
    assert "unknown threshold 'x'" in look(table, job="j", thresholds={"history.x": 1.0}).problem
    assert "no detector 'no'" in look(table, job="j", thresholds={"no.ratio": 1.0}).problem
    assert look(table, job="none", thresholds={"history.ratio": 1.0}).problem == "no job 'none' runs here"


def test_the_log_says_who_is_slow_and_the_command_runs(table, caplog, tmp_path: Path):
    caplog.set_level("INFO")
    out = tmp_path / "alarms"
    watch = Watch(table, f"""sh -c 'echo "$LBBSP_JOB $LBBSP_RANK $LBBSP_CHANGE $LBBSP_SINCE" > {out}'""")
    watch.look(6.0)
    (process,) = watch._alarms._running
    assert process.wait(10) == 0
    assert out.read_text() == "j 3 raised 40\n"
    assert "rank 3 is 2.00 times slower than usual since iteration 40 (history)" in caplog.text
    run(table, 60, 20)
    watch.look(8.0)
    assert "rank 3 is no longer slow" in caplog.text
    (process,) = watch._alarms._running
    assert process.wait(10) == 0
    assert out.read_text() == "j 3 cleared 40\n"


def test_a_command_that_cannot_run_is_said_once(table, caplog):
    watch = Watch(table, "/does/not/exist")
    watch.look(6.0)
    assert caplog.text.count("cannot run /does/not/exist") == 1


def test_stragglers_as_lines_and_json(table):
    seen = look(table, job="j")
    (slow,) = lines(seen)
    assert slow.startswith("rank 3: 2.00 times slower than usual for 19 iterations (transient; by history)")
    (found,) = json.loads(json.dumps(figures(seen)))["stragglers"]
    assert (found["rank"], found["since"]) == (3, 40)
    assert lines(msgspec.structs.replace(seen, flags=())) == ["job 'j', iteration 59: no rank is slow"]


def test_thresholds_on_the_command_line():
    assert thresholds(["rolling.ratio=1.4"]) == {"rolling.ratio": 1.4}
    with pytest.raises(ConfigError, match=r"wanted DETECTOR.THRESHOLD=NUMBER"):
        thresholds(["ratio"])


def shown(screen, seen, height=24):
    console = Console(file=io.StringIO(), width=130, force_terminal=False)
    console.print(screen.draw(seen, height))
    return console.file.getvalue()


def test_the_screen_shows_the_slow_rank_first_and_fits(table):
    screen, seen = Screen(), look(table, job="j")
    screen.history.add(seen)
    text = shown(screen, seen, 12)
    assert len(text.splitlines()) <= 12
    assert text.splitlines()[3].split()[0] == "3"
    assert "2.0x" in text


@pytest.mark.parametrize("key", KEYS)
def test_each_key_sorts_and_again_turns_the_order(table, key):
    screen, seen = Screen(), look(table, job="j")
    seen = msgspec.structs.replace(
        seen, sizes=(5, 4, 3, 2, 1), own_time_s=(0.1, 0.2, 0.3, 0.4, 0.5), wait_s=(0.5, 0.4, 0.3, 0.2, 0.1),
        relative_speed=(1.0, 0.9, 0.8, 0.7, 0.6), forecast_error=(0.1, 0.2, 0.3, 0.4, 0.5),
        flags=tuple(
            Flag(rank=rank, slow=True, since=0, slowdown=1.0 + rank, lasting=False, detectors=(), cause="", evidence="")
            for rank in range(RANKS)
        ),
    )  # fmt: skip
    screen.key = ""
    assert screen.press(key, 10)
    order = screen.order(seen)
    assert screen.press(key, 10)
    assert screen.order(seen) == order[::-1]
    assert order == ([0, 1, 2, 3, 4] if key in "rbw" else [4, 3, 2, 1, 0])


def test_keys_scroll_within_bounds_and_quit(table):
    screen, seen = Screen(), look(table, job="j")
    for key in ("down", "down", "next", "next"):
        assert screen.press(key, 10)
    shown(screen, seen, 10)
    assert screen.top <= RANKS
    for _ in range(50):
        screen.press("up", 10)
    assert screen.top == 0
    assert not screen.press("q", 10)


def test_bytes_of_a_terminal_are_keys():
    assert split(b"\x1b[Ajq\x1b[6~") == ["up", "down", "q", "next"]


def test_nobody_there_is_an_error_that_says_what_to_do():
    asker = Asker("tcp://127.0.0.1:1")
    with pytest.raises(ServiceError, match=r"no manager answers at tcp://127\.0\.0\.1:1"):
        asker.ask(Look(), patience_s=0.2)
    asker.close()


def test_without_a_terminal_top_says_what_works_instead(monkeypatch, capsys):
    monkeypatch.setattr("lbbsp.top.command.the_job", lambda asker, job: "j")
    monkeypatch.setattr("sys.argv", ["lbbsp", "top", "j"])
    with pytest.raises(SystemExit):
        main()
    assert "use --once" in capsys.readouterr().err
