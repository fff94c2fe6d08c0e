"""Data files, the model's gradient, and the command line from a recording to JSON."""

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.schemes import data
from bench.schemes.model import Model
from lbbsp.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def write_idx(folder, rng, pack=lambda raw: raw, suffix=""):
    for name, count in (("train", 30), ("t10k", 10)):
        images, labels = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8), rng.integers(0, 3, count, dtype=np.uint8)
        labels[:3] = [0, 1, 2]
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(
            pack(struct.pack(">IIII", 0x803, count, 4, 4) + images.tobytes())
        )
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(
            pack(struct.pack(">II", 0x801, count) + labels.tobytes())
        )
    return images, labels


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_idx_files_are_read(tmp_path, pack, suffix):
    images, labels = write_idx(tmp_path, np.random.default_rng(0), pack, suffix)
    loaded = data.load(tmp_path)
    assert loaded.train_x.shape == (30, 16)
    assert loaded.classes == 3
    assert np.allclose(loaded.test_x, images.reshape(10, 16) / 255.0)
    assert np.array_equal(loaded.test_y, labels)


def test_cifar_files_are_read(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (6, 3073), dtype=np.uint8)
    rows[:, 0] = [0, 1, 2, 3, 4, 9]
    (tmp_path / "data_batch_1.bin").write_bytes(rows[:3].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(rows[3:5].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(rows[5:].tobytes())
    loaded = data.load(tmp_path)
    assert list(loaded.train_y) == [0, 1, 2, 3, 4]
    assert loaded.classes == 10
    assert np.allclose(loaded.train_x[3], rows[3, 1:] / 255.0)


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no data"):
        data.load(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match=r"data_batch_1\.bin has 100 bytes"):
        data.load(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    write_idx(tmp_path, np.random.default_rng(0))
    labels = tmp_path / "train-labels-idx1-ubyte"
    for raw, message in (
        (b"zzzz", "is no IDX file"),
        (struct.pack(">II", 0x801, 9) + b"123", "promises"),
        (struct.pack(">II", 0x801, 3) + b"123", "belong together"),
    ):
        labels.write_bytes(raw)
        with pytest.raises(ConfigError, match=message):
            data.load(tmp_path)
    labels.unlink()
    with pytest.raises(ConfigError, match="has no train-labels"):
        data.load(tmp_path)


@pytest.mark.parametrize("hidden", [0, 5])
def test_the_gradient_is_that_of_the_loss(hidden):
    rng = np.random.default_rng(0)
    model = Model(features=6, classes=3, hidden=hidden)
    weights = model.start(0).astype(np.float64)
    x, y = rng.standard_normal((7, 6)), rng.integers(0, 3, 7)
    _, gradient = model.gradient(weights, x, y)
    for at in range(0, len(weights), 3):
        step = np.zeros(len(weights))
        step[at] = 1e-6
        slope = (model.gradient(weights + step, x, y)[0] - model.gradient(weights - step, x, y)[0]) / 2e-6
        assert gradient[at] == pytest.approx(slope, abs=1e-6)


def test_models_side_by_side_have_the_gradients_of_each_alone():
    rng = np.random.default_rng(0)
    model = Model(features=6, classes=3, hidden=4)
    weights = np.stack([model.start(seed) for seed in range(3)])
    x, y = rng.standard_normal((3, 5, 6)).astype(np.float32), rng.integers(0, 3, (3, 5))
    losses, gradients = model.gradients(weights, x, y)
    for number in range(3):
        loss, gradient = model.gradient(weights[number], x[number], y[number])
        assert loss == pytest.approx(losses[number], rel=1e-5)
        assert np.allclose(gradient, gradients[number], atol=1e-6)


def test_run_compares_schemes_on_a_recording_and_own_data(tmp_path):
    write_idx(tmp_path, np.random.default_rng(0))
    (tmp_path / "mine.csv").write_text(
        "worker,iteration,samples,time_s\n" + "".join(f"{w},{k},8,0.{1 + w}\n" for w in range(2) for k in range(5))
    )
    command = [
        sys.executable, str(ROOT / "bench/schemes/run.py"), "--recording", str(tmp_path / "mine.csv"),
        "--data", str(tmp_path), "--workers", "2", "--global-batch", "8", "--iterations", "4", "--seeds", "0",
        "--schemes", "bsp", "cb-dybw", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"),
        "--jobs", "1",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "bsp" in ran.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert {"iteration_ms", "wasted_share", "time_to_target_s", "final_accuracy"} <= found["mine.csv"]["bsp"].keys()
    assert found["mine.csv"]["bsp"]["time_to_target_s"] is None
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_run_names_what_it_cant_do(tmp_path):
    command = [sys.executable, str(ROOT / "bench/schemes/run.py"), "--data", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "holds no data" in ran.stderr
    assert "Traceback" not in ran.stderr
