"""Runs the demo's processes: two workers and the slowdown beside them. Yields their rows as they come.

torchrun starts PyTorch's workers, tensorflow_job.py TensorFlow's.
All of them end with this process's context, whatever happens. Knows nothing of display or figures.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbbsp.demo import digits, records
from lbbsp.demo.machine import Plan
from lbbsp.demo.records import WORKERS, Row, Settings, Tail
from lbbsp.errors import ServiceError

POLL_S = 0.2
STOP_TIMEOUT_S = 10.0
LAST_LINES = 12
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**32)}
"""glibc gives large blocks back to the kernel and faults them in anew, thousands of pages an iteration, and which sizes
it does that to changes with its mood: with all copies of the model alike, it must not blur the comparison."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Command = list[str]
RowsOfRanks = list[list[Row]]


class Run:
    """One run of the demo in a folder of its own.

    Args:
        settings: what to train.
        plan: how workers are made unequal.
        folder: where settings, data and rows go.
    """

    def __init__(self, settings: Settings, plan: Plan, folder: Path) -> None:
        self._settings, self._plan, self._folder = settings, plan, folder
        self._log = folder / "training.log"
        self._tails = [Tail(records.rows_file(folder, rank)) for rank in range(WORKERS)]

    def rows(self) -> Iterator[RowsOfRanks]:
        """New rows of each rank, until training has ended.

        Raises:
            ServiceError: training failed; says how.
        """
        digits.save(self._folder / "digits.npz", enlarged=1 if self._settings.float64 else 2)
        records.save_settings(self._folder, self._settings)
        with self._log.open("wb") as log, _running(self._trainer(), log) as trainer:
            while not all((self._folder / f"pid{rank}").exists() for rank in range(WORKERS)):
                self._check(trainer)
                time.sleep(POLL_S)
            with _running(self._slowdown(), log, own_session=True):
                (self._folder / "go").touch()
                while trainer.poll() is None:
                    time.sleep(POLL_S)
                    yield self._new_rows()
            self._check(trainer)
        yield self._new_rows()

    def _trainer(self) -> Command:
        if self._settings.framework == "tensorflow":
            return [sys.executable, "-m", "lbbsp.demo.tensorflow_job", str(self._folder)]
        return _torchrun(self._folder)

    def _new_rows(self) -> RowsOfRanks:
        return [list(tail.new_rows()) for tail in self._tails]

    def _slowdown(self) -> Command:
        slow_rank = self._settings.slow_rank
        if self._plan.slowdown == "busy" and self._plan.cores is not None:
            target = str(self._plan.cores[slow_rank])
        else:
            target = (self._folder / f"pid{slow_rank}").read_text()
        return [sys.executable, "-m", "lbbsp.demo.slowdown", str(os.getpid()), self._plan.slowdown, target]

    def _check(self, trainer: "subprocess.Popen[bytes]") -> None:
        code = trainer.poll()
        if code:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise ServiceError(f"training ended with exit code {code}; the last it said:\n{tail}")


@contextmanager
def started(settings: Settings, plan: Plan, keep: Path | None = None) -> Iterator[Run]:
    """A run in a temporary folder, or in `keep`, which stays."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for old in [*keep.glob("rank*.jsonl"), *keep.glob("pid*"), keep / "go"]:
            old.unlink(missing_ok=True)
        yield Run(settings, plan, keep)
        return
    with tempfile.TemporaryDirectory(prefix="lbbsp-demo-") as folder:
        yield Run(settings, plan, Path(folder))


def _torchrun(folder: Path) -> Command:
    """On this machine's own addresses, so that no name must resolve and no network be there."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(WORKERS)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("-m", "lbbsp.demo.worker", str(folder)),
    ]


def _environment() -> dict[str, str]:
    """Ours, with one thread a process; the demo's manager is its own, whatever else runs here."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LBBSP_")}
    if sys.platform == "linux":
        ours.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return ours | KEEP_MEMORY | dict.fromkeys(ONE_THREAD, "1")


@contextmanager
def _running(command: Command, log: object, own_session: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends when the block does.

    Linux may share a core between sessions (autogroup), and the user's own may hold much else: the slowdown has a
    session of its own, as torchrun's workers have.
    """
    process = subprocess.Popen(  # type: ignore[call-overload]
        command, stdout=log, stderr=subprocess.STDOUT, env=_environment(), start_new_session=own_session
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
