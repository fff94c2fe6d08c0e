"""Which incarnation of a job runs, in any order of hellos, reports, byes and kills of the manager, with a real journal.

On paper first; each of these is a test here, in test_remembered.py (4, 6, 7, 9), or in the random one at the end, which
mixes them all:
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

import pytest
from incarnations import SPEEDS, Incarnation, X, follows_speeds

from lbbsp.protocol import Plan, Refused, Unknown, Welcome
from lbbsp.service.journal_records import encode


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


def test_6_a_bye_of_an_earlier_incarnation_ends_nothing(world):
    first = Incarnation(world, "first").join()
    first.steps(3)
    second = Incarnation(world, "second").join()
    for rank in range(2):
        first.bye(rank)
    assert isinstance(second.steps(1), Plan)


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
