"""A small soak (bench/soak.py): jobs come, restart, end and vanish; the journal stays bounded, nothing is left over."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import soak


def test_jobs_come_and_go_and_neither_table_nor_journal_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "FORGET_AFTER_S", 20.0)
    monkeypatch.setattr(soak, "MEAN_LIFE", 20)
    monkeypatch.setattr(soak, "ITERATION_S", 1.0)
    figures = soak.run(2_400, 1, tmp_path)
    assert min(figures[name] for name in ("restarted", "ended", "vanished")) > 20
    assert figures["jobs_begun"] > 60
    assert figures["jobs_most"] < 40
    assert figures["journal_kib_second_half_over_first"] < 2.0
    assert figures["journal_kib_most"] < 3_000


@pytest.mark.parametrize("predictor", ["narx", "auto"])
def test_predictors_with_much_to_remember_stay_bounded_too(tmp_path, predictor):
    figures = soak.run(240, 2, tmp_path, predictor)
    assert figures["journal_kib_most"] < 8_000
