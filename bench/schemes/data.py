"""Real data: scikit-learn's digits, or IDX (MNIST and kin) and CIFAR-10 binary files from a folder.

Knows nothing of models. Pixels become float32 in 0 .. 1, one row a sample. Nothing is downloaded.
"""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbbsp.errors import ConfigError

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_CIFAR_ROW = 1 + 3072
_IDX_SHAPES = {0x803: 3, 0x801: 1}


@dataclass(frozen=True, eq=False)
class Data:
    """Samples to train on and to test with."""

    name: str
    train_x: Floats
    train_y: Labels
    test_x: Floats
    test_y: Labels

    @property
    def classes(self) -> int:
        """Of the labels, 0 .. classes - 1."""
        return int(max(self.train_y.max(), self.test_y.max())) + 1


def load(folder: Path | None = None) -> Data:
    """Digits (1,437 to train, 360 to test), or what a folder holds.

    Raises:
        ConfigError: the folder holds neither IDX nor CIFAR-10 binary files, or one of them is damaged.
    """
    if folder is None:
        return _digits()
    if sorted(folder.glob("data_batch_*.bin")):
        return _cifar(folder)
    if _idx_file(folder, "train-images"):
        return _idx(folder)
    raise ConfigError(
        f"{folder} holds no data: wanted IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., "
        "plain or .gz) or CIFAR-10's binary version (data_batch_1.bin .., test_batch.bin)"
    )


def _digits() -> Data:
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data / 16.0).astype(np.float32)[order], digits.target.astype(np.int64)[order]
    return Data("digits", x[:1437], y[:1437], x[1437:], y[1437:])


def _cifar(folder: Path) -> Data:
    train = [_cifar_file(path) for path in sorted(folder.glob("data_batch_*.bin"))]
    test = _cifar_file(folder / "test_batch.bin")
    return Data(folder.name, np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), *test)


def _cifar_file(path: Path) -> tuple[Floats, Labels]:
    raw = np.frombuffer(_bytes(path), dtype=np.uint8)
    if not len(raw) or len(raw) % _CIFAR_ROW:
        raise ConfigError(f"{path} has {len(raw)} bytes: wanted a multiple of {_CIFAR_ROW}, CIFAR-10's binary row")
    rows = raw.reshape(-1, _CIFAR_ROW)
    return rows[:, 1:].astype(np.float32) / 255.0, rows[:, 0].astype(np.int64)


def _idx(folder: Path) -> Data:
    parts = []
    for name in ("train-images", "train-labels", "t10k-images", "t10k-labels"):
        path = _idx_file(folder, name)
        if path is None:
            raise ConfigError(f"{folder} has no {name}-idx*-ubyte file")
        parts.append(_idx_array(path))
    train_x, train_y, test_x, test_y = parts
    for x, y in ((train_x, train_y), (test_x, test_y)):
        if len(x) != len(y) or x.ndim != 3 or y.ndim != 1:
            raise ConfigError(f"{folder}: {len(x)} images and {len(y)} labels don't belong together")
    return Data(folder.name, _flat(train_x), train_y.astype(np.int64), _flat(test_x), test_y.astype(np.int64))


def _flat(images: npt.NDArray[np.uint8]) -> Floats:
    return images.reshape(len(images), -1).astype(np.float32) / 255.0


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in sorted(folder.glob(f"{name}*ubyte*")) if path.is_file()), None)


def _idx_array(path: Path) -> npt.NDArray[np.uint8]:
    """One IDX file: magic number, one length per dimension (big-endian), then bytes."""
    raw = _bytes(path)
    magic = struct.unpack(">I", raw[:4])[0] if len(raw) >= 4 else 0
    dimensions = _IDX_SHAPES.get(magic)
    if dimensions is None or len(raw) < 4 + 4 * dimensions:
        raise ConfigError(f"{path} is no IDX file of unsigned bytes: it starts with {raw[:4].hex()}")
    shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions)
    if len(values) != int(np.prod(shape, dtype=np.int64)) or not len(values):
        raise ConfigError(f"{path} promises {shape} and holds {len(values)} bytes")
    return values.reshape(shape)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(f"there is no {path}")
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
