"""Chunks shipped in memory files: what arrives is what torch would bring, and nothing stays behind."""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from test_chunks import Things, ragged, same
from torch.utils.data import DataLoader, Dataset, default_collate

from lbbsp.adapters.pytorch import chunks, shipping

PREFETCH = 2
PR_SET_DUMPABLE = 4


class Rows(Dataset[Any]):
    """Large enough for a file each; `at` says what happens before a sample is read."""

    def __init__(self, at: Callable[[int], None] | None = None) -> None:
        self.at = at

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Any:
        if self.at is not None:
            self.at(index)
        return torch.full((64, 64), float(index)), index


def loader_of(data: Dataset[Any], tasks: int = 20, collate: Any = None, **options: Any) -> "DataLoader[Any]":
    """The adapter's loader of chunks, over these tasks of two samples each."""
    users: DataLoader[Any] = DataLoader(data, prefetch_factor=PREFETCH, collate_fn=collate, **options)
    indices: Any = [[2 * task, 2 * task + 1] for task in range(tasks)]
    return chunks.chunked(users, indices, chunks.joining_of(users))


def files_of(process: int | str) -> int:
    """Chunks' memory files that a process has open or mapped."""
    links = []
    for one in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{process}/fd/{one}"))
    maps = Path(f"/proc/{process}/maps").read_text()
    return sum("lbbsp-chunk" in link for link in links) + maps.count("lbbsp-chunk")


def right(task: int, chunk: Any) -> None:
    x, index = chunk
    assert index.tolist() == [2 * task, 2 * task + 1]
    assert (x == index.view(2, 1, 1)).all()
    x.mul_(2)


@pytest.mark.parametrize(
    ("context", "collate"), [("fork", None), ("fork", ragged), ("spawn", ragged), ("forkserver", None)]
)
def test_chunks_arrive_right_from_workers_of_every_start_method(context: str, collate: Any) -> None:
    data = Things(8)
    loader = loader_of(data, 4, collate, num_workers=1, multiprocessing_context=context)
    assert isinstance(loader.collate_fn, shipping.Shipping)
    for task, chunk in enumerate(loader):
        samples = [data[2 * task], data[2 * task + 1]]
        same(chunk, samples if collate else default_collate(samples))


def test_files_are_held_no_longer_than_they_are_needed() -> None:
    loader = loader_of(Rows(), 60, num_workers=2)
    iterator: Any = iter(loader)
    gc.collect()
    before = files_of("self")
    for task, chunk in enumerate(iterator):
        right(task, chunk)
        for worker in iterator._workers:
            if worker.is_alive():
                assert files_of(worker.pid) <= loader.collate_fn.keep + 1
        assert files_of("self") - before <= 2 * (2 * PREFETCH + 1), "an open file and a map for each chunk"
        del chunk
    del iterator
    gc.collect()
    assert files_of("self") == before == 0


def test_a_batch_lives_on_without_its_worker() -> None:
    kept = list(loader_of(Rows(), 12, num_workers=2))
    for task, chunk in enumerate(kept):
        right(task, chunk)
    assert files_of("self") >= 12
    del kept, chunk
    gc.collect()
    assert files_of("self") == 0


def sleepy(index: int) -> None:
    time.sleep(0.001 * (index % 7))


def test_torch_has_no_more_chunks_under_way_than_files_are_kept_for() -> None:
    """Without the two files of margin: epochs broken off, workers that live on, two iterators at once."""
    loader = loader_of(Rows(sleepy), 12, num_workers=2, persistent_workers=True)
    loader.collate_fn.keep = PREFETCH
    for stop in (12, 1, 5, 0, 12):
        for task, chunk in enumerate(loader):
            right(task, chunk)
            if task == stop:
                break
    loader = loader_of(Rows(sleepy), 12, num_workers=2)
    loader.collate_fn.keep = PREFETCH
    for task, (one, other) in enumerate(zip(loader, loader, strict=True)):
        right(task, one)
        right(task, other)


class Ending(Rows):
    """The worker ends while it reads sample 4, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            self.now.wait()
            os._exit(0)
        return super().__getitem__(index)


def test_a_worker_that_dies_is_told_as_torch_tells_it() -> None:
    """Its files are gone while a message that names one is under way."""
    data = Ending()
    iterator: Any = iter(loader_of(data, num_workers=1))
    next(iterator)
    assert iterator._worker_result_queue._reader.poll(30)
    data.now.set()
    iterator._workers[0].join()
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly") as raised:
        next(iterator)
    assert isinstance(raised.value.__cause__, OSError)


def kill_workers(rank: int) -> list[str]:
    """What is said each time, whatever the worker was about."""
    said = []
    for context in ["fork"] * 4 + ["forkserver"] * 2:
        iterator: Any = iter(loader_of(Rows(), 100, num_workers=1, multiprocessing_context=context))
        next(iterator)
        iterator._worker_result_queue._reader.poll(30)  # or torch would look for dead workers after 5 s only
        try:
            iterator._workers[0].kill()
            list(iterator)
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_a_worker_that_is_killed_is_told_as_torch_tells_it() -> None:
    (said,) = run(1, kill_workers)
    assert len(said) == 6
    for one in said:
        assert re.search(r"DataLoader worker .*(is killed by signal: Killed|exited unexpectedly)", one)


def hide(worker: int) -> None:
    """Only a privileged process may look at this one's files from now on."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def test_a_worker_that_has_made_itself_unreadable_sends_as_torch_does() -> None:
    iterator: Any = iter(loader_of(Rows(), num_workers=1, worker_init_fn=hide))
    for task, chunk in enumerate(iterator):
        right(task, chunk)
        assert files_of("self") == 0


@pytest.mark.parametrize("lacking", ["memory files", "children", "the child's files"])
def test_where_no_childs_file_can_be_opened_chunks_go_as_torch_sends_them(
    lacking: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "lbbsp")
    match lacking:
        case "memory files":
            monkeypatch.delattr(os, "memfd_create")
        case "children":
            monkeypatch.setattr("sys.executable", "/nowhere/python")
        case _:
            monkeypatch.setattr(shipping, "FILES", "/proc/{process}/hidden/{descriptor}")
    loader = loader_of(Rows(), num_workers=1)
    assert not isinstance(loader.collate_fn, shipping.Shipping)
    for task, chunk in enumerate(loader):
        right(task, chunk)
        assert chunk[0].is_shared()
    assert any("chunks go the way of torch's own tensors" in line for line in caplog.messages)


def small_files(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_chunk_that_gets_no_memory_file_travels_in_the_message() -> None:
    for task, chunk in enumerate(loader_of(Rows(), num_workers=1, worker_init_fn=small_files)):
        right(task, chunk)
        assert files_of("self") == 0
