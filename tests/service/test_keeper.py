"""What the journal gets, and how often: at most a share of a core and of the disk, in turn, and nothing twice."""

import numpy as np
import pytest

from lbbsp.protocol import Bye, Hello, Report, encode
from lbbsp.service import keeper as keeper_module
from lbbsp.service.admission import SILENT_S, Admission
from lbbsp.service.job import sizer_maker
from lbbsp.service.journal import Journal
from lbbsp.service.journal_records import Ended, Forgotten, Learnt, Started
from lbbsp.service.keeper import LATEST_S, SOONEST_S, Keeper, past_jobs
from lbbsp.service.table import JobTable


class World:
    """A table whose journal is watched; time passes when told."""

    def __init__(self, path, **table) -> None:
        self.now_s, self.seen = 0.0, []
        self.spend_s = 0.0
        self.journal = Journal(path)
        append = self.journal.append

        def watched(record):
            self.seen.append((self.now_s, record))
            self.now_s += self.spend_s
            return append(record)

        self.journal.append = watched
        self.table = JobTable(sizer_maker("last"), **table)
        self.keeper = Keeper(self.table, self.journal, lambda: self.now_s, lambda: 1e9 + self.now_s)

    def say(self, message) -> None:
        self.table.handle(b"%s %d" % (message.job.encode(), message.rank), encode(message), self.now_s)

    def join(self, job: str, ranks: int = 2) -> None:
        for rank in range(ranks):
            self.say(
                Hello(
                    job=job, incarnation="i", rank=rank, world_size=ranks, global_batch=32 * ranks, min_samples=0,
                    max_samples=32 * ranks, machine=f"m{rank}",
                )
            )  # fmt: skip

    def step(self, job: str, iteration: int, ranks: int = 2, slow: int = -1) -> None:
        for rank in range(ranks):
            own_s = 0.2 if rank == slow else 0.1
            report = Report(job=job, incarnation="i", rank=rank, iteration=iteration, samples=32, own_time_s=own_s)
            self.say(report)
        self.table.catch_up()

    def bye(self, job: str) -> None:
        for rank in range(2):
            self.say(Bye(job=job, incarnation="i", rank=rank))

    def of(self, kind, job: str = "j") -> list[float]:
        return [when for when, record in self.seen if isinstance(record, kind) and record.job == job]


@pytest.fixture
def make(tmp_path):
    made = []

    def world(**table) -> World:
        made.append(World(tmp_path / f"journal{len(made)}", **table))
        return made[-1]

    yield world
    for one in made:
        one.journal.close()


def test_a_beginning_is_written_at_once_and_an_idle_job_never_again(make):
    world = make()
    world.join("j")
    world.keeper.look(world.now_s)
    assert world.of(Started) == [0.0]
    for _ in range(100):
        world.now_s += 1.0
        world.keeper.look(world.now_s)
    assert world.of(Learnt) == []


def test_snapshots_come_each_second_at_first_and_each_ten_later(make):
    world = make()
    world.join("j")
    for iteration in range(2_000):
        world.step("j", iteration)
        world.keeper.look(world.now_s)
        world.now_s += 0.1
    between_s = np.diff(world.of(Learnt))
    assert between_s[:5] == pytest.approx(np.full(5, SOONEST_S), abs=0.2)
    assert between_s[-3:] == pytest.approx(np.full(3, LATEST_S), abs=1.2)


def test_many_jobs_share_the_budget_in_turn(make, monkeypatch):
    monkeypatch.setattr(keeper_module, "BYTES_PER_S", 20_000.0)
    world = make()
    names = [f"j{number}" for number in range(12)]
    for name in names:
        world.join(name)
    for iteration in range(400):
        for name in names:
            world.step(name, iteration)
        world.keeper.look(world.now_s)
        world.now_s += 0.1
    counts = [len(world.of(Learnt, name)) for name in names]
    size_bytes = world.journal.append(world.seen[-1][1])
    assert sum(counts) * size_bytes < 1.2 * 20_000.0 * 41
    assert min(counts) > 0
    assert max(counts) <= min(counts) + 2


def test_a_core_is_used_for_a_hundredth_at_most(make):
    world = make()
    world.join("j")
    world.keeper.look(world.now_s)
    world.spend_s, began_s = 0.05, world.now_s
    for iteration in range(1_000):
        world.step("j", iteration)
        world.keeper.look(world.now_s)
        world.now_s += 0.1
    assert len(world.of(Learnt)) * 0.05 <= 0.0105 * (world.now_s - began_s) + 0.05


def test_ends_and_vanished_jobs_are_written_once(make):
    world = make()
    for name in ("over", "silent"):
        world.join(name)
        world.step(name, 0)
    world.keeper.look(world.now_s)
    world.bye("over")
    for _ in range(3):
        world.now_s += 2.0
        world.keeper.look(world.now_s)
    assert len(world.of(Ended, "over")) == 1
    world.now_s += world.table.forget_after_s + 1.0
    world.table.forget_vanished(world.now_s)
    for _ in range(3):
        world.now_s += 2.0
        world.keeper.look(world.now_s)
    assert [len(world.of(Forgotten, name)) for name in ("over", "silent")] == [1, 1]
    assert world.journal.flush()
    assert world.journal._current == {}


def test_closing_writes_what_was_learnt_since(make, tmp_path):
    world = make()
    world.join("j")
    world.keeper.look(world.now_s)
    for iteration in range(5):
        world.step("j", iteration)
    world.keeper.close()
    world.journal = Journal(tmp_path / "journal0")
    assert past_jobs(world.journal, 1e9)["j"].state["_inbox"]["closed"] == 4


def test_a_full_table_lets_the_longest_silent_job_go_and_remembers_it(make):
    world = make(admission=Admission(most_jobs=2))
    for name in ("old", "busy"):
        world.join(name)
        world.step(name, 0)
    world.now_s = SILENT_S + 1.0
    world.step("busy", 1)
    world.join("new")
    assert sorted(world.table.jobs) == ["busy", "new"]
    assert list(world.table.past.jobs) == ["old"]
    world.now_s += 1.1
    world.join("newer")
    assert sorted(world.table.jobs) == ["busy", "new"]


def test_a_restarted_manager_knows_who_is_slow(tmp_path):
    before = World(tmp_path / "journal")
    before.join("j")
    for iteration in range(40):
        before.step("j", iteration)
    for iteration in range(40, 50):
        before.step("j", iteration, slow=1)
    before.keeper.close()
    after = World(tmp_path / "journal")
    after.join("j")
    for iteration in range(50, 56):
        after.step("j", iteration, slow=1)
    live = after.table.jobs["j"].live
    live.see()
    (flagged,) = live.stragglers.flagged.values()
    assert (flagged.rank, flagged.slowdown) == (1, pytest.approx(2.0, rel=0.05))
    after.journal.close()
