"""A job's incarnations as they speak to a manager that may be killed at any moment; a real journal, no socket.

Time stands still unless told.
"""

import shutil

import numpy as np

from lbbsp.protocol import Bye, Hello, Plan, Report, Welcome
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
            self.truths.append(encode(job.live.told()))
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


def follows_speeds(plan: Plan, machines) -> bool:
    speeds = np.array([SPEEDS[name] for name in machines])
    return bool(np.abs(np.array(plan.sizes) - X * speeds / speeds.sum()).max() <= 3)
