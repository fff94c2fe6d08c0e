"""The demo's data: scikit-learn's 1,797 handwritten digits, each also moved by one pixel in four directions, enlarged.

Knows nothing of torch. Images are (samples, 1, side, side) float32 between 0 and 1, labels (samples,) int64.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


def save(path: Path, enlarged: int = 2) -> None:
    """Write the data set for the workers, so that they need no scikit-learn; sides are 8 times `enlarged`."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large, tiled = prepared(images.reshape(-1, 8, 8) / 16.0, labels, enlarged)
    np.savez(path, images=large, labels=tiled)


def prepared(
    images: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], enlarged: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Moved and enlarged copies of (samples, 8, 8) images, with their labels."""
    moved = np.concatenate([_moved(images, down, right) for down, right in MOVES])
    large = moved.repeat(enlarged, axis=1).repeat(enlarged, axis=2)
    return large[:, None].astype(np.float32), np.tile(labels, len(MOVES)).astype(np.int64)


def _moved(images: npt.NDArray[np.float64], down: int, right: int) -> npt.NDArray[np.float64]:
    """Moved within the frame, with blank pixels coming in."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    height, width = images.shape[1:]
    return padded[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width]
