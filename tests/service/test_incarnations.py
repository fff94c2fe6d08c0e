"""Incarnations of one job in any order of hellos, reports, byes and kills of the manager, with a real journal.

On paper first; each of these is a test here or in the random one at the end, which mixes them all:
 1. a client of an earlier incarnation comes back after a newer one has begun: refused, also by the next manager
 2. the manager is killed between the hellos of a new incarnation: the hellos come again
 3. hellos of two incarnations interleave: the one that is complete last runs, the other is refused
 4. a snapshot lies between a report and the plan that it closes: half an iteration is never taken up
 5. the manager is killed after a plan, before a snapshot: versions still rise
 6. the earlier ranks all say bye while the new ones gather, or before the first of them comes
 7. the world shrinks or grows, ranks change places: what was learnt follows machine and device
 8. a recorded frame of an earlier incarnation is sent again
 9. the same incarnation comes back with other bounds after a kill
"""

import random
import shutil

import numpy as np
import pytest

from lbbsp.protocol import Bye, Hello, Plan, Refused, Report, Unknown, Welcome
from lbbsp.protocol import encode as encode_message
from lbbsp.service.job import sizer_maker
from lbbsp.service.journal import Journal
from lbbsp.service.journal_records import encode
from lbbsp.service.keeper import Keeper
from lbbsp.service.table import JobTable

X = 120
SPEEDS = {"slow": 1000.0, "fast": 4000.0, "usual": 2000.0, "other": 3000.0}


class World:
    """One job name, its incarnations, and a manager that may be killed at any moment; time stands still unless told."""

    def __init__(self, folder, predictor: str = "last") -> None:
        self.folder, self.predictor = folder, predictor
        self.now_s, self.wall_s, self.run = 100.0, 1e9, 0
        self.journal: Journal | None = None
        self.heard: list[tuple[bytes, object]] = []
        self.truths: list[bytes] = []
        self.start()

    def start(self) -> None:
        self.run += 1
        self.journal = Journal(self.folder / f"journal{self.run}")
        self.table = JobTable(sizer_maker(self.predictor))
        self.keeper = Keeper(self.table, self.journal, lambda: self.now_s, lambda: self.wall_s)

    def kill(self, flushed: bool = True) -> None:
        """What has reached the file is all that the next manager gets."""
        if flushed:
            assert self.journal.flush()
        shutil.copy(self.folder / f"journal{self.run}", self.folder / f"journal{self.run + 1}")
        self.journal.close()
        self.start()

    def say(self, message, peer: bytes | None = None) -> list:
        peer = peer or b"%s %d run %d" % (message.incarnation.encode(), message.rank, self.run)
        replies = self.table.handle(peer, encode_message(message), self.now_s)
        assert self.table.rejections.of("j").keys() <= {
            "unknown incarnation",
            "no hello",
            "early",
            "stale",
            "unknown rank",
        }
        self.table.catch_up()
        self.keeper.look(self.now_s)
        self.heard += replies
        if (job := self.table.jobs.get("j")) is not None and job.live is not None:
            self.truths.append(encode(job.live.sizer.told()))
        return [reply for to, reply in replies if to == peer]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds
        self.table.forget_vanished(self.now_s)
        self.keeper.look(self.now_s)


class Incarnation:
    """Ranks on machines."""

    def __init__(self, world: World, name: str, machines=("slow", "fast"), **fields) -> None:
        self.world, self.name, self.machines = world, name, machines
        self.fields = {"min_samples": 0, "max_samples": X} | fields
        self.sizes = self.equal = [X // len(machines)] * len(machines)
        self.iteration = 0

    def hello(self, rank: int) -> list:
        return self.world.say(
            Hello(
                job="j", incarnation=self.name, rank=rank, world_size=len(self.machines), global_batch=X,
                machine=self.machines[rank], **self.fields,
            )
        )  # fmt: skip

    def join(self) -> "Incarnation":
        for rank in range(len(self.machines)):
            (answer, *_) = self.hello(rank)
            assert isinstance(answer, Welcome), answer
        return self

    def report_of(self, rank: int, iteration: int | None = None) -> Report:
        samples = self.sizes[rank]
        own_s = (samples + 1) / SPEEDS[self.machines[rank]]
        number = self.iteration if iteration is None else iteration
        return Report(job="j", incarnation=self.name, rank=rank, iteration=number, samples=samples, own_time_s=own_s)

    def step(self) -> Plan | None:
        plan = None
        for rank in reversed(range(len(self.machines))):
            for reply in self.world.say(self.report_of(rank)):
                plan = reply if isinstance(reply, Plan) else plan
        self.iteration += 1
        if plan is not None:
            self.sizes = list(plan.sizes)
        return plan

    def steps(self, number: int) -> Plan:
        plans = [self.step() for _ in range(number)]
        assert plans[-1] is not None
        return plans[-1]

    def bye(self, rank: int) -> None:
        self.world.say(Bye(job="j", incarnation=self.name, rank=rank))


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.journal.close()


def follows_speeds(plan: Plan, machines) -> bool:
    speeds = np.array([SPEEDS[name] for name in machines])
    return bool(np.abs(np.array(plan.sizes) - X * speeds / speeds.sum()).max() <= 3)


@pytest.mark.parametrize("killed", [False, True])
def test_1_a_client_of_an_earlier_incarnation_is_refused_and_its_reports_move_nothing(world, killed):
    first = Incarnation(world, "first").join()
    first.steps(5)
    second = Incarnation(world, "second").join()
    if killed:
        world.kill()
        second.join()
    (answer,) = first.hello(0)
    assert isinstance(answer, Refused)
    assert "replaced by a newer one" in answer.reason
    before = encode(world.table.jobs["j"].live.sizer.told())
    first.step()
    assert encode(world.table.jobs["j"].live.sizer.told()) == before
    assert isinstance(second.steps(1), Plan)


def test_1_all_of_an_earlier_incarnation_come_back_first_after_a_kill_and_still_are_refused(world):
    first = Incarnation(world, "first").join()
    first.steps(5)
    second = Incarnation(world, "second").join()
    world.kill()
    assert [isinstance(first.hello(rank)[0], Refused) for rank in range(2)] == [True, True]
    second.join()
    assert follows_speeds(second.steps(1), second.machines)


@pytest.mark.parametrize("said", [1, 2, 3])
def test_2_the_manager_is_killed_between_hellos(world, said):
    machines = ("slow", "fast", "usual")
    first = Incarnation(world, "first", machines).join()
    first.steps(5)
    second = Incarnation(world, "second", machines)
    for rank in range(said):
        second.hello(rank)
    world.kill()
    (answer,) = world.say(second.report_of(0))
    assert isinstance(answer, Unknown)
    second.join()
    assert follows_speeds(second.steps(1), machines)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("killed", [False, True])
def test_3_hellos_of_two_incarnations_interleave_and_the_last_complete_one_runs(world, seed, killed):
    order = [(name, rank) for name in ("a", "b") for rank in range(2)]
    random.Random(seed).shuffle(order)
    both = {name: Incarnation(world, name) for name in ("a", "b")}
    for place, (name, rank) in enumerate(order):
        if killed and place == 2:
            world.kill()
            for earlier, one in order[:2]:
                both[earlier].hello(one)
        both[name].hello(rank)
    last = order[-1][0]
    assert both[last].steps(2).incarnation == last
    other = "a" if last == "b" else "b"
    assert both[other].step() is None
    assert isinstance(both[other].hello(0)[0], Refused)


def test_4_half_an_iteration_is_never_taken_up(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    world.say(first.report_of(1))
    world.pass_s(2.0)
    whole = world.truths[-1]
    world.kill()
    assert encode(world.table.past.jobs["j"].state) == whole
    first.join()
    world.say(first.report_of(0))
    first.iteration += 1
    assert first.steps(2).based_on_iteration == 12


@pytest.mark.parametrize("flushed", [False, True])
def test_5_versions_rise_whatever_the_journal_missed(world, flushed):
    first = Incarnation(world, "first").join()
    newest = -1
    for _ in range(4):
        for plan in (first.step(), first.step(), first.step()):
            assert plan.version > newest
            newest = plan.version
        world.kill(flushed)
        first.join()


def test_5_versions_rise_where_an_incarnation_begins_anew_with_other_bounds(world):
    first = Incarnation(world, "first").join()
    newest = first.steps(5).version
    first.fields["max_samples"] = 110
    first.join()
    assert first.steps(1).version > newest


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("gathering", [False, True])
def test_6_all_say_bye_before_or_while_the_next_gather(world, killed, gathering):
    first = Incarnation(world, "first").join()
    first.steps(10)
    second = Incarnation(world, "second")
    if gathering:
        second.hello(0)
    for rank in range(2):
        first.bye(rank)
    world.pass_s(5.0)
    if killed:
        world.kill()
    second.join()
    assert follows_speeds(second.steps(1), second.machines)


def test_6_a_job_that_ended_is_forgotten_soon(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    for rank in range(2):
        first.bye(rank)
    world.pass_s(700.0)
    assert world.table.past.jobs == {}
    assert world.table.jobs == {}
    world.kill()
    assert world.table.past.jobs == {}
    assert world.journal.records() == []


def test_6_a_bye_of_an_earlier_incarnation_ends_nothing(world):
    first = Incarnation(world, "first").join()
    first.steps(3)
    second = Incarnation(world, "second").join()
    for rank in range(2):
        first.bye(rank)
    assert isinstance(second.steps(1), Plan)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    "machines", [("fast", "slow"), ("slow",), ("fast", "usual", "slow", "other"), ("fast", "slow", "usual")]
)
def test_7_what_was_learnt_follows_the_machine_through_any_change_of_the_world(world, killed, machines):
    first = Incarnation(world, "first", ("slow", "fast", "usual")).join()
    first.steps(20)
    if killed:
        world.pass_s(2.0)
        world.kill()
    second = Incarnation(world, "second", machines).join()
    live = world.table.jobs["j"].live
    known = [name in first.machines for name in machines]
    last = live.sizer._forecaster.last
    assert (np.isfinite(last) == known).all()
    plan = second.steps(1)
    assert sum(plan.sizes) == X
    assert follows_speeds(second.steps(3), machines)


def test_7_a_machine_that_was_away_for_an_incarnation_is_known_when_it_is_back(world):
    Incarnation(world, "first", ("slow", "fast", "usual")).join().steps(20)
    second = Incarnation(world, "second", ("fast", "slow")).join()
    second.steps(5)
    third = Incarnation(world, "third", ("usual", "fast", "slow")).join()
    assert np.isfinite(world.table.jobs["j"].live.sizer._forecaster.last).all()
    assert follows_speeds(third.steps(1), third.machines)


def test_7_ranks_that_share_a_device_name_are_matched_in_order_and_the_absent_one_is_kept(world):
    Incarnation(world, "first", ("slow", "fast", "fast")).join().steps(20)
    Incarnation(world, "second", ("fast", "slow")).join().steps(5)
    third = Incarnation(world, "third", ("fast", "slow", "fast", "usual")).join()
    known = np.isfinite(world.table.jobs["j"].live.sizer._forecaster.last)
    assert known.tolist() == [True, True, True, False]
    assert follows_speeds(third.steps(3), third.machines)


def test_8_a_frame_that_is_sent_again_moves_nothing(world):
    first = Incarnation(world, "first").join()
    old = [first.report_of(rank, 0) for rank in range(2)]
    first.steps(5)
    world.pass_s(2.0)
    world.kill()
    first.join()
    before = encode(world.table.jobs["j"].live.sizer.told())
    for message in old:
        assert world.say(message, b"first %d run %d" % (message.rank, world.run)) == []
    assert encode(world.table.jobs["j"].live.sizer.told()) == before


def test_9_the_same_incarnation_with_other_bounds_keeps_what_it_learnt_and_the_bounds(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    world.pass_s(2.0)
    world.kill()
    first.fields["max_samples"] = 80
    first.join()
    assert first.steps(1).sizes == (40, 80)


def test_a_silent_job_is_forgotten_by_the_table_and_by_the_journal(world):
    Incarnation(world, "first").join().steps(3)
    world.pass_s(world.table.forget_after_s + 2.0)
    assert world.table.jobs == {}
    world.pass_s(2.0)
    world.kill()
    assert world.table.past.jobs == {}


def test_a_remembered_job_is_forgotten_by_the_time_that_somebody_last_spoke_for_it(world):
    Incarnation(world, "first").join().steps(3)
    world.kill()
    world.pass_s(world.table.forget_after_s - 10.0)
    world.kill()
    assert "j" in world.table.past.jobs
    world.pass_s(20.0)
    assert world.table.past.jobs == {}
    world.pass_s(2.0)
    world.kill()
    assert world.journal.records() == []


def test_a_clock_that_was_set_back_keeps_nothing_longer_than_asked(world):
    Incarnation(world, "first").join().steps(3)
    world.wall_s -= 1e8
    world.kill()
    world.pass_s(world.table.forget_after_s + 1.0)
    assert world.table.past.jobs == {}


class Rank:
    """One rank's client, as it behaves: a hello until it is welcomed, then reports; a new hello where it is unknown."""

    def __init__(self, incarnation: Incarnation, rank: int) -> None:
        self.of, self.rank, self.welcomed, self.iteration = incarnation, rank, False, 0

    def act(self) -> list:
        if not self.welcomed:
            replies = self.of.hello(self.rank)
        else:
            replies = self.of.world.say(self.of.report_of(self.rank, self.iteration))
            self.iteration += 1
        for reply in replies:
            if isinstance(reply, Welcome):
                self.welcomed = True
            elif isinstance(reply, Unknown):
                self.welcomed = False
        return replies


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_all_this(world, seed):
    draw = random.Random(seed)
    names = iter(range(1000))
    alive: list[list[Rank]] = []
    newest: dict[str, int] = {}
    replaced: set[str] = set()

    def begin() -> None:
        machines = tuple(draw.sample(sorted(SPEEDS), draw.choice((2, 3, 4))))
        incarnation = Incarnation(world, f"i{next(names)}", machines)
        alive.append([Rank(incarnation, rank) for rank in range(len(machines))])
        del alive[:-3]

    def check(replies: list) -> None:
        for reply in replies:
            if isinstance(reply, Plan):
                assert sum(reply.sizes) == X
                assert reply.version > newest.get(reply.incarnation, -1)
                assert reply.incarnation not in replaced
                newest[reply.incarnation] = reply.version
            elif isinstance(reply, Refused):
                assert "replaced by a newer one" in reply.reason
                replaced.add(reply.incarnation)

    begin()
    for _ in range(250):
        event = draw.random()
        if event < 0.03:
            begin()
        elif event < 0.06:
            world.kill()
            job = world.table.past.jobs.get("j")
            assert job is None or job.state is None or encode(job.state) in world.truths
            for rank in (rank for ranks in alive for rank in ranks):
                rank.welcomed = rank.welcomed and draw.random() < 0.5
        elif event < 0.08:
            world.pass_s(draw.choice((0.5, 2.0, 20.0)))
        elif event < 0.10:
            for rank in draw.choice(alive):
                rank.of.bye(rank.rank)
        else:
            ranks = draw.choice(alive)
            slowest = min(rank.iteration for rank in ranks)
            check(draw.choice([rank for rank in ranks if rank.iteration <= slowest + 1]).act())
    begin()
    for _ in range(8):
        world.pass_s(0.3)  # a rank that is unknown is reminded a few times a second
        for rank in alive[-1]:
            rank.welcomed or check(rank.act())
    last: list = []
    for _ in range(3):
        last = [reply for rank in reversed(alive[-1]) for reply in rank.act()]
    assert [type(reply) for reply in last] == [Plan]
