"""One run of one scheme: the clock, the workers' speeds, the network, the data, the model and the account.

Schemes say who computes what and when it counts; everything that is the same for all of them is here. Times in
seconds, sizes in samples.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from bench.schemes.clock import Clock
from bench.schemes.data import Data
from bench.schemes.deck import Deck, Ledger, Share
from bench.schemes.model import Floats, Model
from bench.schemes.network import Server, Wire
from bench.schemes.speeds import Speeds
from lbbsp.errors import ConfigError

NOMINAL_S = 0.130
"""What an equal share takes an undisturbed worker, so that iterations last 120 to 150 ms or more."""


@dataclass(frozen=True)
class Setup:
    """What every scheme of a comparison shares."""

    workers: int = 8
    global_batch: int = 256
    iterations: int = 300
    """Each scheme applies so many global batches of samples, however many updates that takes."""
    rate: float = 0.5
    decay: float = 0.9995
    """Step size: rate * decay ** (whole global batches applied)."""
    target_loss: float = 0.15
    fixed_samples: float = 1.5
    """Work of an iteration that doesn't depend on its samples, in samples."""
    chunk_samples: float = 0.5
    """The same for each micro-batch, the first included."""
    shards: Literal["iid", "labels"] = "iid"
    wire: Wire = field(default_factory=Wire)
    seed: int = 0
    score_every: int = 2
    """Global batches between two looks at loss and accuracy."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.global_batch < self.workers:
            raise ConfigError(f"{self.workers} workers can't share {self.global_batch} samples: give each at least one")

    @property
    def worker_rate(self) -> float:
        """Speed in samples/s of an undisturbed worker."""
        return (self.global_batch / self.workers + self.fixed_samples + self.chunk_samples) / NOMINAL_S

    def shares(self) -> list[int]:
        """The equal split."""
        whole, rest = divmod(self.global_batch, self.workers)
        return [whole + (worker < rest) for worker in range(self.workers)]


class Task:
    """A worker at work on a share."""

    def __init__(self, world: "World", worker: int, share: Share, work: float, done: Callable[["Task"], None]) -> None:
        self.worker, self.share = worker, share
        self.start_s = world.clock.now_s
        self.end_s = world.speeds.end_s(worker, self.start_s, work)
        self._world = world
        self._event = world.clock.at(self.end_s, lambda: self._finish(done))
        self.running = True

    def progress(self) -> float:
        """Share of it that is done, 0 .. 1."""
        now_s = self._world.clock.now_s
        return 1.0 if not self.running else self._world.speeds.progress(self.worker, self.start_s, self.end_s, now_s)

    def cancel(self) -> None:
        """Stop it, where it still runs; what becomes of its samples the scheme must say."""
        if self.running:
            self._event.cancel()
            self._stop()

    def _finish(self, done: Callable[["Task"], None]) -> None:
        self._stop()
        done(self)

    def _stop(self) -> None:
        self.running = False
        self._world.busy_s += self._world.clock.now_s - self.start_s


class World:
    """What a scheme works with."""

    def __init__(self, setup: Setup, speeds: Speeds, data: Data) -> None:
        if speeds.workers != setup.workers:
            raise ConfigError(f"the load has {speeds.workers} workers, the job {setup.workers}")
        self.setup, self.speeds, self.data = setup, speeds, data
        self.clock, self.ledger = Clock(), Ledger()
        self.server = Server(setup.wire, self.clock)
        self.deck = Deck(data.train_y, setup.workers, setup.shards, setup.seed)
        self.model = Model(data.train_x.shape[1], data.classes)
        self.weights = self.model.start(setup.seed)
        self.iterations = 0
        self.iterations_end_s = 0.0
        self.busy_s = 0.0
        """Of all workers together."""
        self.curve: list[tuple[float, int, float, float]] = []
        """Time, samples applied, training loss, test accuracy."""
        self._score_at = 0

    @property
    def step_size(self) -> float:
        """At this moment."""
        return self.setup.rate * self.setup.decay ** (self.ledger.applied // self.setup.global_batch)

    @property
    def over(self) -> bool:
        """Whether as many samples were applied as the run is to apply."""
        return self.ledger.applied >= self.setup.iterations * self.setup.global_batch

    def compute(self, worker: int, share: Share, done: Callable[[Task], None], *, first: bool = True) -> Task:
        """Let a worker compute a share; `first` in this iteration, or one more micro-batch."""
        self.ledger.start(share)
        work = len(share) + self.setup.chunk_samples + (self.setup.fixed_samples if first else 0.0)
        return Task(self, worker, share, work, done)

    def gradient(self, weights: Floats, share: Share) -> tuple[float, Floats]:
        """Mean loss and gradient over a share."""
        return self.model.gradient(weights, self.data.train_x[share.rows], self.data.train_y[share.rows])

    def update(self, gradient: Floats, share: Share, scale: float = 1.0) -> None:
        """One step of SGD with a gradient over this share."""
        self.weights = (self.weights - self.step_size * scale * gradient).astype(np.float32)
        self.ledger.apply(share)

    def end_iteration(self, weights: Floats | None = None) -> None:
        """Count one, and look at the model now and then."""
        self.iterations += 1
        self.iterations_end_s = self.clock.now_s
        if self.ledger.applied >= self._score_at or self.over:
            self._score_at = self.ledger.applied + self.setup.score_every * self.setup.global_batch
            weights, data = self.weights if weights is None else weights, self.data
            loss, _ = self.model.score(weights, data.train_x, data.train_y)
            _, accuracy = self.model.score(weights, data.test_x, data.test_y)
            self.curve.append((self.clock.now_s, self.ledger.applied, loss, accuracy))


class Scheme(Protocol):
    """One way to train together. Everything it does follows from the events that it asks the clock for."""

    def __init__(self, world: World) -> None: ...

    def begin(self) -> None:
        """Ask for the first events."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run showed. None where the target was not reached."""

    iteration_ms: float
    wasted_share: float
    time_to_target_s: float | None
    final_accuracy: float
    batch_ms: float
    """Time for each global batch of samples applied: the same work for every scheme."""
    waiting_share: float
    """Of the workers' time."""
    samples_to_target: int | None
    iterations: int
    curve: list[tuple[float, int, float, float]]
    world: World
    scheme: Scheme


def simulate(
    make: Callable[[World], Scheme], setup: Setup, speeds: Speeds, data: Data,
    tick: Callable[[float], None] | None = None, updates: int | None = None,
) -> Outcome:  # fmt: skip
    """Run a scheme until it applied its samples, or made so many updates. `tick` hears the share that is done."""
    world = World(setup, speeds, data)
    scheme = make(world)
    scheme.begin()
    goal, told = setup.iterations * setup.global_batch, 0.0
    while not world.over and world.iterations != updates and world.clock.step():
        if tick and world.ledger.applied / goal >= told:
            tick(min(1.0, world.ledger.applied / goal))
            told += 0.02
    return outcome(world, scheme)


def outcome(world: World, scheme: Scheme) -> Outcome:
    """Sum up a run that is over."""
    took_s, batches = world.iterations_end_s, world.ledger.applied / world.setup.global_batch
    reached = next((point for point in world.curve if point[2] <= world.setup.target_loss), None)
    return Outcome(
        iteration_ms=1e3 * took_s / max(world.iterations, 1),
        wasted_share=world.ledger.wasted_share,
        time_to_target_s=reached[0] if reached else None,
        final_accuracy=float(np.mean([point[3] for point in world.curve[-5:]])) if world.curve else 0.0,
        batch_ms=1e3 * took_s / max(batches, 1e-9),
        waiting_share=1.0 - world.busy_s / (took_s * world.setup.workers) if took_s else 0.0,
        samples_to_target=reached[1] if reached else None,
        iterations=world.iterations,
        curve=world.curve,
        world=world,
        scheme=scheme,
    )
