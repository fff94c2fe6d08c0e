"""How much of an iteration to plan and how much to leave to claims, from what plans lost lately.

Each closed iteration shows the ranks' real speeds, so what the best plan would have been: how far the real one was
off is what claims can save, and the rank that had most too much says how much of a plan is safe. Knows nothing of
reports or messages. Arrays have one entry per rank; sizes in samples, times in seconds.
"""

import logging
import math
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import IntArray
from lbbsp.core.parts import FACTOR
from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]
log = logging.getLogger(__name__)

MODES = ("off", "on", "auto")
WINDOW = 32
"""Iterations that are judged together."""
LEAST_KNOWN = 8
FORGET_EVERY = 4
"""Of so many iterations without claims, one that had some is forgotten: what slowed ranks down then may have gone."""
LEAST_STAY = 16
"""Iterations between a decision and its opposite."""
SETTLING = 12
"""Iterations at the start whose plans could not know the speeds yet."""
WORTH, WORTHLESS = 0.03, 0.015
"""Share of an iteration's time that plans must lose for claims to begin, and below which they end."""
SAFE = 0.1
"""In so many iterations the planned part may be too much for some rank."""
LEAST_BETA, MOST_BETA = 0.3, 0.9
BETA_STEP = 0.05
CHUNKS = 32
"""A rank's share holds so many of its least chunks, unless these would cost too much."""
FIXED_SHARE = 0.5
"""The most of a chunk's work that its fixed cost may be."""
UNTRIED = 0.25
"""Of an iteration's fixed cost, the part taken as that of each micro-batch before claims were tried: most of what
curves show is paid once an iteration, and where speeds jump they show more than there is."""
_NEWEST = 0.1
"""Of the newest communication time in the usual one."""


class Cut(NamedTuple):
    """How the next iterations are cut."""

    beta: float = 1.0
    """Planned share; 1: nothing is claimed."""
    chunk: int = 0
    """Samples that a rank of equal share claims at least at once."""


class Claiming:
    """Decides for one job.

    Args:
        mode: "off"; "on": claim where plans lose more than claims were seen to cost; "auto": weighs what curves say of
            their cost before they are tried, too.
        ranks: of the job.
        global_batch: samples.

    Raises:
        ConfigError: unknown mode.
    """

    def __init__(self, mode: str, ranks: int, global_batch: int) -> None:
        if mode not in MODES:
            raise ConfigError(f"claims {mode!r} is unknown; known: {', '.join(MODES)}")
        self.mode = mode
        self.cut = Cut()
        self.why = "nothing is known yet"
        self._ranks, self._global_batch = ranks, global_batch
        self._claimed: Array = np.zeros(ranks)
        self._fixed_s: Array = np.zeros(ranks)
        """Of a micro-batch, as ranks measured; 0: not known."""
        self._lost: deque[float] = deque(maxlen=WINDOW)
        self._safe: deque[float] = deque(maxlen=WINDOW)
        self._theta = 0.0
        self._seen = 0
        self._decided = -LEAST_STAY
        self._claimed_before = False
        self._pace: dict[bool, deque[float]] = {claims: deque(maxlen=WINDOW) for claims in (False, True)}
        """Logarithm of all ranks' speeds together, in iterations without and with claims."""
        self._communication: dict[bool, float] = {}
        """Share of an iteration that its reduction takes beyond the last gradient, without and with claims."""

    def say(self, rank: int, claimed: int, fixed_s: float = 0.0) -> None:
        """One rank's report of the iteration under way."""
        self._claimed[rank] = claimed
        if fixed_s > 0.0:
            self._fixed_s[rank] = fixed_s

    def take(self) -> Array:
        """What was claimed in the iteration that closes."""
        claimed, self._claimed = self._claimed, np.zeros(self._ranks)
        return claimed

    def follow(
        self, sizes: IntArray, samples: Array, time_s: Array, theta: Array, wait_s: Array, claimed: bool
    ) -> None:
        """Learn from one closed iteration.

        Args:
            sizes: that the plan gave.
            samples: really worked, NaN = unknown.
            time_s: own time.
            theta: fixed cost of a batch, in samples.
            wait_s: for the others, in the iteration before.
            claimed: whether anything was.
        """
        self._seen += 1
        known = bool(np.isfinite(samples).all() and np.isfinite(time_s).all() and (samples > 0).all())
        if not known or samples.sum() != self._global_batch or self._seen <= SETTLING:
            self._claimed_before = claimed
            return
        speed = (theta + samples) / time_s
        best_s = float((self._global_batch + theta.sum()) / speed.sum())
        best = np.maximum(speed * best_s - theta, 0.0)
        real = np.maximum(sizes, 1)
        self._lost.append(float(((theta + sizes) / speed).max()) / best_s - 1.0)
        self._safe.append(float((best / real).min()))
        self._theta = self._fixed_samples(theta, speed)
        self._pace[claimed].append(math.log(float(speed.sum())))
        if not claimed and self._pace[True] and self._seen % FORGET_EVERY == 0:
            self._pace[True].popleft()
        self._hear(float(wait_s.min()) / best_s, self._claimed_before)
        self._claimed_before = claimed
        self._decide()

    @property
    def _measured(self) -> bool:
        return bool((self._fixed_s > 0.0).all())

    def _fixed_samples(self, theta: Array, speed: Array) -> float:
        """A micro-batch's fixed cost in samples of the usual rank."""
        if self._measured:
            return float(np.median(self._fixed_s * speed))
        tried = len(self._pace[True]) >= LEAST_STAY
        return float(np.median(theta)) * (1.0 if tried else UNTRIED)

    def _hear(self, share: float, claims: bool) -> None:
        old = self._communication.get(claims, share)
        self._communication[claims] = old + _NEWEST * (min(share, 3.0 * old + 0.01) - old)

    def _decide(self) -> None:
        if len(self._lost) < LEAST_KNOWN:
            return
        cut = self._cut()
        lost, slower = float(np.mean(self._lost)), self._slower()
        cost = max(slower, self._cost(cut))
        claims = self.cut.beta < 1.0
        wanted = lost - cost > (WORTHLESS if claims else WORTH)
        if wanted != claims and self._seen - self._decided < LEAST_STAY:
            wanted = claims
        self.why = (
            f"plans lose {lost:.1%} of an iteration to what they can't foresee"
            + (f", claims cost {cost:.1%}" if cost else "")
            + self._account(cut)
            + (f": {cut.beta:.0%} are planned" if wanted else ": all is planned")
        )
        if wanted != claims:
            self._decided = self._seen
            log.info("claims %s: %s", "begin" if wanted else "end", self.why)
        self.cut = cut if wanted else Cut()

    def _cut(self) -> Cut:
        safe = float(np.quantile(self._safe, SAFE))
        beta = min(MOST_BETA, max(LEAST_BETA, math.floor(safe / BETA_STEP) * BETA_STEP))
        equal = self._global_batch / self._ranks
        chunk = min(equal / 4, max(equal / CHUNKS, self._theta / FIXED_SHARE))
        return Cut(beta, max(1, round(chunk)))

    def _slower(self) -> float:
        """What work has become slower by since ranks claim, beyond what chance explains: waits for the counter, say.

        Neighbours that came at the same time look like it, so it stands in only where no rank measures.
        """
        if self._measured:
            return 0.0
        before, since = self._pace[False], self._pace[True]
        if min(len(before), len(since)) < LEAST_KNOWN:
            return 0.0
        doubt = 2.0 * math.sqrt(np.var(before) / len(before) + np.var(since) / len(since))
        return max(0.0, float(np.mean(before) - np.mean(since)) - doubt)

    def _cost(self, cut: Cut) -> float:
        """Share of an iteration: each chunk's fixed cost, and communication that nothing hides any more.

        Where the user wants claims, only what was measured counts.
        """
        counts = self.mode == "auto" or self._measured
        return counts * self._chunks(cut) * self._fixed_share() + self._uncovered()

    def _chunks(self, cut: Cut) -> float:
        """About how many chunks a rank claims: each takes FACTOR of what is left, down to the least."""
        pool = (1.0 - cut.beta) * self._global_batch / self._ranks
        return 1.0 + math.log(max(1.0, pool / cut.chunk)) / -math.log(1.0 - FACTOR)

    def _fixed_share(self) -> float:
        return self._theta / (self._theta + self._global_batch / self._ranks)

    def _uncovered(self) -> float:
        """Unknown, so taken as nothing, until claims were tried."""
        if True not in self._communication or False not in self._communication:
            return 0.0
        return max(0.0, self._communication[True] - self._communication[False])

    def _account(self, cut: Cut) -> str:
        return (
            f" ({self._chunks(cut):.0f} micro-batches of {self._fixed_share():.1%} fixed cost, {self._uncovered():.1%} "
            "of communication that no longer overlaps)"
        )
