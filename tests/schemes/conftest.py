"""The bench's modules, small jobs and loads that one can work out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.schemes import data, loads
from bench.schemes.network import Wire
from bench.schemes.speeds import Schedule
from bench.schemes.world import Setup, simulate

FREE = Wire(latency_s=0.0, model_bytes=0.0)


@pytest.fixture(scope="session")
def digits():
    return data.load()


@pytest.fixture
def constant():
    """Speeds, samples/s, that never change."""

    def make(*rates):
        return Schedule([np.array([0.0, 1000.0])] * len(rates), [np.array([float(rate)]) for rate in rates])

    return make


@pytest.fixture
def short(digits):
    """Run a scheme for some iterations of 4 workers and 32 samples, under a load's name or given speeds."""

    def run(make, load="bursts", **options):
        setup = Setup(**{"workers": 4, "global_batch": 32, "iterations": 12, "score_every": 1, **options})
        speeds = loads.LOADS[load](setup.workers, setup.worker_rate, setup.seed) if isinstance(load, str) else load
        return simulate(make, setup, speeds, digits)

    return run


@pytest.fixture
def free():
    return FREE
