"""Mutated frames at a live manager with a real job on it: no crash, no fault of ours, no plan moved, memory flat."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lbbsp.protocol import UNREADABLE, Hello, Look, Report, decode_seen, decode_to_manager, decode_to_worker, encode

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import mutations  # noqa: E402

IDS = {"job": "j", "incarnation": "i"}
SOUND = [
    encode(Hello(**IDS, rank=0, world_size=1, global_batch=9, min_samples=0, max_samples=9)),
    encode(Report(**IDS, rank=0, iteration=1, samples=9, own_time_s=0.1)),
    encode(Look(job="j", thresholds={"rolling.ratio": 1.4})),
]


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_frames_crash_nothing_and_move_no_plan(seed):
    command = [sys.executable, str(BENCH / "fuzz.py"), "--frames", "10000", "--seed", str(seed), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["frames"] == 10_000
    assert result["plan_changes"] > 0, "the comparison needs plans that move"
    assert result["rejected"]["malformed"] > 1_000
    assert result["rejected"]["another's job"] > 100


@pytest.mark.parametrize("mutation", dict.fromkeys(mutations.MUTATIONS), ids=lambda one: one.__name__)
def test_whatever_decoding_raises_is_known(mutation):
    dice = random.Random(3)
    refused = 0
    for _ in range(3_000):
        frame = mutation(dice, dice.choice(SOUND), dice.choice(SOUND))
        for decode in (decode_to_manager, decode_to_worker, decode_seen):
            try:
                decode(frame)
            except UNREADABLE:
                refused += 1
    assert refused > 3_000
