"""What the demo's processes tell one another: settings to the workers, one row an iteration from each of them.

Files in a folder that the controller makes: settings.json, digits.npz, go, rank0.jsonl, rank1.jsonl. Times in seconds,
batches in samples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TextIO

import msgspec

WORKERS = 2
EQUAL, LBBSP, FIXED = "equal", "lbbsp", "fixed"
WARM_UP, SWEEP, COMPARE = "warm-up", "sweep", "compare"
Optimizer = Literal["sgd", "adamw"]
Framework = Literal["torch", "tensorflow"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for, and what the machine allows."""

    seed: int = 1
    global_batch: int = 256
    blocks: int = 6
    """Blocks of each mode."""
    block_iterations: int = 34
    optimizer: Optimizer = "sgd"
    float64: bool = False
    framework: Framework = "torch"
    slow_rank: int = 1
    cores: tuple[int, ...] | None = None
    """The core of each rank; None where processes can't be pinned."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of one rank."""

    phase: str
    mode: str
    block: int
    iteration: int
    """Iterations of this copy of the model before this one."""
    sizes: tuple[int, ...] | None = None
    """Sizes of all ranks, where they are forced."""
    settling: bool = False
    """Among the first of a block: shown, not measured."""
    samples: int
    iteration_s: float
    own_s: float
    """From the start of the iteration to the last gradient."""
    wait_s: float
    """From the last gradient to the end of the reduction; under TensorFlow the update that follows is in it."""
    draw_s: float
    """Part of own_s: getting the batch, waiting for its size included."""
    loss: float
    """Mean over this rank's samples."""
    lag: int = 0
    """Iterations between the reports behind the sizes and the sizes; 0 where sizes are forced."""


_encoder = msgspec.json.Encoder()
_row_decoder = msgspec.json.Decoder(Row)


def rows_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its rows."""
    return folder / f"rank{rank}.jsonl"


def write(file: TextIO, row: Row) -> None:
    """Append one row, at once."""
    file.write(_encoder.encode(row).decode() + "\n")


def save_settings(folder: Path, settings: Settings) -> None:
    """For load_settings()."""
    (folder / "settings.json").write_bytes(_encoder.encode(settings))


def load_settings(folder: Path) -> Settings:
    """What save_settings() wrote."""
    return msgspec.json.decode((folder / "settings.json").read_bytes(), type=Settings)


class Tail:
    """Reads a rank's rows while it writes them."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    @property
    def begun(self) -> bool:
        """Whether the rank has opened its file."""
        return self._path.exists()

    def new_rows(self) -> Iterator[Row]:
        """The whole rows written since the last call."""
        if not self.begun:
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                yield _row_decoder.decode(line)
