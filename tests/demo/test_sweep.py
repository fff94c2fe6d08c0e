import pytest

from lbbsp.demo import sweep


def curves(fast, slow):
    """Seconds of an iteration under a split, for two speeds in samples/s of the fast and the slow rank."""
    return lambda slow_rank: (
        lambda sizes, iterations: [max(sizes[1 - slow_rank] / fast, sizes[slow_rank] / slow)] * iterations
    )


@pytest.mark.parametrize("slow_rank", [0, 1])
@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0, 5.0])
def test_the_sweep_finds_the_best_split_within_its_grain(slow_rank, ratio):
    sizes = sweep.best_sizes(curves(1000.0 * ratio, 1000.0)(slow_rank), 256, slow_rank)
    best = 256 * ratio / (1 + ratio)
    assert sum(sizes) == 256
    assert abs(sizes[1 - slow_rank] - best) <= 256 / sweep.FINE_STEPS


def test_one_disturbed_try_does_not_decide():
    tries = []

    def times_s(sizes, iterations):
        tries.append(sizes)
        disturbed = len(tries) % 9 == 0
        return [
            max(sizes[0] / 2000.0, sizes[1] / 1000.0) + 0.1 * disturbed * (number < 3) for number in range(iterations)
        ]

    fast, _ = sweep.best_sizes(times_s, 256, 1)
    assert abs(fast - 171) <= 8
