"""When members that cost much take part in a contest: in bouts, further apart while they win too little.

A model that reads sensors costs a manager of two ranks several times what all plain forecasts cost together
(`python bench/predictors.py --scale 2`), and the manager's cores may be the workers' own. While the job itself rests,
with sizes that nobody moves, nothing is at stake, and a bout waits. Knows nothing of forecasts: it is told what each
iteration won, as a share of the clairvoyant plan's time.
"""

import math

FIRST, BOUT = 300, 50
"""Iterations that are judged in the first bout, and in each later one."""
LEAST_REST, MOST_REST = 200, 1600
"""Iterations without them after a bout in vain: each one in a row doubles it, up to the latter."""
WORTH = 0.01
"""What they must win over plain forecasts, as a share of the clairvoyant plan's time, to go on: they rest ..."""
SURE = 3.0
"""... where that is so many standard errors more than they won."""
OLDER = 0.5
"""What an earlier bout of the same run of bouts still counts."""
SKIM = 4
"""While they rest, the others are compared in each so many iterations: little is at stake between them."""
AWAKE = 4
"""Iterations told of one by one after which the job rests no more: one alone comes at an epoch's edge, two where a plan
comes too late for the message after a rest."""
EARLY = 10
"""Iterations before the end of a rest from which sensors should be read again."""


class Bouts:
    """Counts judged iterations.

    Args:
        warm_up: iterations after a rest in which they look on but do not count, so that they know the newest past.
    """

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._rest_left = self._warm_left = 0
        self._idle = self._single = 0
        self._bout_left = FIRST
        self._next_rest = LEAST_REST
        self._count = self._won = self._squares = 0.0

    @property
    def resting(self) -> bool:
        """Whether they neither learn nor forecast."""
        return self._rest_left > 0 or self._idle > 0

    @property
    def skimming(self) -> bool:
        """Whether this iteration is one that nobody needs to compare forecasts in."""
        return (self._idle or self._rest_left) % SKIM > 0

    @property
    def reading(self) -> bool:
        """Whether sensors are read: not for most of a rest."""
        return self._rest_left <= EARLY and not self._idle

    @property
    def judged(self) -> bool:
        """Whether their forecasts count."""
        return not self.resting and self._warm_left == 0

    def expect_mean_of(self, iterations: int) -> None:
        """Of so many iterations in one is the next step: of more than one where the job rests."""
        self._single = self._single + 1 if iterations == 1 else 0
        self._idle = self._idle + 1 if iterations > 1 or (self._idle and self._single < AWAKE) else 0
        if self._idle:
            self._rest_left = max(0, self._rest_left - iterations)
            self._warm_left = self._warm_up

    def step(self, won: float) -> None:
        """One iteration is over. won: time lost by the best plain choice less that lost by the choice among all."""
        if self._idle:
            return
        if self._rest_left:
            self._rest_left -= 1
            self._warm_left = self._warm_up
        elif self._warm_left:
            self._warm_left -= 1
        else:
            self._count += 1.0
            self._won += won
            self._squares += won**2
            self._bout_left -= 1
            if not self._bout_left:
                self._end()

    def _end(self) -> None:
        self._bout_left = BOUT
        mean = self._won / self._count
        error = math.sqrt(max(self._squares / self._count - mean**2, 0.0) / self._count)
        if mean + SURE * error < WORTH:
            self._rest_left, self._next_rest = self._next_rest, min(2 * self._next_rest, MOST_REST)
            self._count = self._won = self._squares = 0.0
        else:
            self._next_rest = LEAST_REST if mean >= WORTH else self._next_rest
            self._count, self._won, self._squares = OLDER * self._count, OLDER * self._won, OLDER * self._squares
