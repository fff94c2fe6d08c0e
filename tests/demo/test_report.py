import msgspec
import pytest
from demo_rows import row, run

from lbbsp.demo import report
from lbbsp.demo.records import EQUAL, FIXED, LBBSP, Settings

TIMES_S = {EQUAL: 0.12, LBBSP: 0.08, FIXED: 0.075}


def test_figures_are_ratios_of_the_blocks_iteration_times_without_their_first_iterations():
    result, detail = report.summarise(run(TIMES_S), Settings())
    assert result.speedup == pytest.approx(1.5)
    assert result.ideal_speedup == pytest.approx(1.6)
    assert result.efficiency == pytest.approx(1.5 / 1.6)
    assert result.iteration_ms.equal == pytest.approx(120.0)
    assert detail.fixed_ms == pytest.approx(75.0)
    assert detail.fixed_sizes == (170, 86)
    assert detail.lag_one_share == pytest.approx(0.8)


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_wait_share_is_the_fast_ranks(slow_rank):
    result, _ = report.summarise(run(TIMES_S), Settings(slow_rank=slow_rank))
    assert result.wait_share.lbbsp == pytest.approx(0.01 * (2 - slow_rank) / 0.08)


def test_json_has_exactly_the_promised_keys():
    result, _ = report.summarise(run(TIMES_S), Settings(seed=7))
    written = msgspec.json.decode(msgspec.json.encode(result))
    assert list(written) == [
        "speedup",
        "ideal_speedup",
        "efficiency",
        "iteration_ms",
        "wait_share",
        "final_loss",
        "seed",
    ]
    for name in ("iteration_ms", "wait_share", "final_loss"):
        assert list(written[name]) == ["equal", "lbbsp"]
    assert written["seed"] == 7


def test_losses_are_weighted_by_samples_and_empty_parts_count_nothing():
    ranks = [[row(mode=LBBSP, samples=96, loss=1.0)], [row(mode=LBBSP, samples=32, loss=2.0)]]
    assert report.global_losses(ranks, LBBSP) == [pytest.approx(1.25)]
    ranks = [[row(mode=LBBSP, samples=128, loss=1.0)], [row(mode=LBBSP, samples=0, loss=float("nan"))]]
    assert report.global_losses(ranks, LBBSP) == [1.0]


@pytest.mark.parametrize(("lbbsp_s", "faulty"), [(0.08, False), (0.0715, False), (0.07, True)])
def test_an_efficiency_above_105_percent_is_a_fault_of_the_measurement(lbbsp_s, faulty):
    result, _ = report.summarise(run(TIMES_S | {LBBSP: lbbsp_s}), Settings())
    assert (report.fault(result) is not None) == faulty


def test_workers_that_were_hardly_unequal_are_told():
    result, _ = report.summarise(run(TIMES_S | {FIXED: 0.115, LBBSP: 0.117}), Settings())
    assert "hardly unequal" in report.fault(result)
