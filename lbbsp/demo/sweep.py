"""The yardstick: which fixed split of the global batch is the fastest, found by trying.

Pure: timing comes in as a function. Two ranks; sizes in samples, times in seconds.
"""

from collections.abc import Callable
from statistics import median

Sizes = tuple[int, ...]
COARSE_STEPS = 16
"""The coarse pass tries every sixteenth of the global batch from a half to seven eighths for the fast rank."""
FINE_STEPS = 48
"""The fine pass tries every forty-eighth around the best of them, two to each side."""
ROUNDS = {"coarse": 2, "fine": 2}
ITERATIONS = {"coarse": 5, "fine": 10}
"""Iterations of one try."""


def best_sizes(
    times_s: Callable[[Sizes, int], list[float]],
    global_batch: int,
    slow_rank: int,
) -> Sizes:
    """The split with the shortest iterations.

    Args:
        times_s: tries sizes for so many iterations and returns their times, the same list on all ranks, since all must
            try the same sizes next.
        global_batch: the sum of the sizes.
        slow_rank: gets the smaller part.
    """
    unit = max(1, global_batch // FINE_STEPS)
    half, most = global_batch // 2, global_batch * 7 // 8

    def fastest(parts: range, way: str) -> int:
        """Of these parts for the fast rank; tried forth and back, so that a drift of the machine favours none."""
        tried_s: dict[int, list[float]] = {part: [] for part in parts}
        for number in range(ROUNDS[way]):
            for part in parts if number % 2 == 0 else reversed(parts):
                tried_s[part] += times_s(split(part, global_batch, slow_rank), ITERATIONS[way])
        return min(parts, key=lambda part: median(tried_s[part]))

    near = fastest(range(half, most + 1, max(1, global_batch // COARSE_STEPS)), "coarse")
    best = fastest(range(max(half, near - 2 * unit), near + 2 * unit + 1, unit), "fine")
    return split(best, global_batch, slow_rank)


def split(fast: int, global_batch: int, slow_rank: int) -> Sizes:
    """Sizes in order of rank, `fast` of them for the rank that is not slow."""
    rest = global_batch - fast
    return (fast, rest) if slow_rank == 1 else (rest, fast)
