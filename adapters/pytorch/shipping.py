"""Chunks' way from a loader worker to the training process: one anonymous memory file each, which the latter opens.

torch hands each tensor's descriptor over by a thread of the loader worker, for which the training thread waits until
that thread gets a core. Here the message names the worker's descriptor, and the training process opens it in /proc.
Knows nothing of batches and plans; sizes in bytes.
"""

import ctypes
import errno
import io
import logging
import mmap
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch

ALIGNMENT = 64
SMALL = 1 << 14
"""Copying less than this costs less than a file."""
PR_GET_DUMPABLE = 3
END_TIMEOUT_S = 5.0
FILES = "/proc/{process}/fd/{descriptor}"

log = logging.getLogger(__name__)


class Pickler(pickle.Pickler):
    """Plain tensors are pickled as buffers of their own elements, all else as the pickler beside this one does."""

    def reducer_override(self, value: Any) -> Any:
        """Called for what isn't of Python's own types."""
        if not plain(value):
            return NotImplemented
        shape = tuple(value.shape)
        if not value.numel():
            return _tensor, (None, value.dtype, shape)
        row = value.contiguous().as_strided((value.numel(),), (1,))
        elements: Any = row.view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(elements), value.dtype, shape)


class ByValue(Pickler):
    """What is no plain tensor is pickled by value."""


class AsTorch(Pickler, ForkingPickler):
    """What is no plain tensor is pickled as torch does it between processes."""


def plain(value: Any) -> bool:
    """Whether this is a tensor that its elements, dtype and shape say all about."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return not (
        value.requires_grad
        or value.is_quantized
        or value.is_nested
        or value.is_conj()
        or value.is_neg()
        or value.__dict__
    )


def _tensor(elements: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Shares the memory of the buffer."""
    return torch.empty(shape, dtype=dtype) if elements is None else torch.frombuffer(elements, dtype=dtype).view(shape)


def by_value(value: Any) -> bytes:
    """The whole of it in one pickle."""
    file = io.BytesIO()
    ByValue(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class Packing(Protocol):
    """How a loader worker makes chunks."""

    pickler: type[Pickler]

    def pack(self, samples: list[Any]) -> Any:
        """A chunk to be sent by torch."""

    def gather(self, samples: list[Any]) -> Any:
        """A chunk to be shipped."""


class Parcel:
    """A chunk under way: unpickling it calls `receive`, which gives the chunk itself."""

    def __init__(self, receive: Callable[..., Any], *contents: Any) -> None:
        self._receive, self._contents = receive, contents

    def __reduce__(self) -> Any:
        """What to call with what."""
        return self._receive, self._contents


@dataclass
class Shipping:
    """The collate function of loader workers whose chunks are shipped.

    Args:
        packing: makes the chunks.
        keep: files a worker holds open, no fewer than its chunks that may be under way.
        small: a chunk below this many bytes travels in the message.
    """

    packing: Packing
    keep: int
    small: int = SMALL
    _trainer: tuple[Any, ...] = field(default_factory=lambda: _identity())
    _readable: bool | None = None
    _files: deque[int] = field(default_factory=deque)

    def __call__(self, samples: list[Any]) -> Any:
        """In a loader worker: one chunk; sent by torch where the worker has made itself unreadable to the trainer."""
        if self._readable is None:
            self._readable = _identity() == self._trainer
        if not self._readable:
            return self.packing.pack(samples)
        buffers: list[pickle.PickleBuffer] = []
        chunk = io.BytesIO()
        self.packing.pickler(chunk, pickle.HIGHEST_PROTOCOL, True, buffers.append).dump(self.packing.gather(samples))
        return self._parcel(chunk.getvalue(), [buffer.raw() for buffer in buffers])

    def _parcel(self, chunk: bytes, buffers: list[memoryview]) -> Parcel:
        parts = laid_out([buffer.nbytes for buffer in buffers])
        size = parts[-1][1] if parts else 0
        if size and size >= self.small:
            try:
                descriptor = _filled(buffers, parts)
            except OSError as error:
                log.debug("no memory file for a chunk of %d bytes, sent in the message: %s", size, error)
            else:
                self._hold(descriptor)
                return Parcel(_opened, os.getpid(), descriptor, os.fstat(descriptor).st_ino, parts, chunk)
        contents = bytearray(size)
        for buffer, (start, stop) in zip(buffers, parts, strict=True):
            contents[start:stop] = buffer
        return Parcel(_carried, contents, parts, chunk)

    def _hold(self, descriptor: int) -> None:
        self._files.append(descriptor)
        while len(self._files) > self.keep:
            os.close(self._files.popleft())


def laid_out(sizes: list[int]) -> list[tuple[int, int]]:
    """Where buffers of these sizes begin and end, one after another."""
    parts, start = [], 0
    for size in sizes:
        parts.append((start, start + size))
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return parts


def _filled(buffers: list[memoryview], parts: list[tuple[int, int]]) -> int:
    """Descriptor of a new memory file that holds these buffers there."""
    descriptor = os.memfd_create("lbbsp-chunk", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, parts[-1][1])
        for buffer, (start, _) in zip(buffers, parts, strict=True):
            written = 0
            while written < buffer.nbytes:
                written += os.pwrite(descriptor, buffer[written:], start + written)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _opened(process: int, descriptor: int, inode: int, parts: list[tuple[int, int]], chunk: bytes) -> Any:
    """In the training process: the chunk in the worker's memory file, mapped until the last of its tensors is gone.

    Raises:
        OSError: the worker has died, which the loader then says.
    """
    try:
        file = _open(process, descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        _await_end(process)
        raise
    try:
        if os.fstat(file).st_ino != inode:
            raise OSError(errno.ESTALE, f"the chunk of loader worker {process} is gone")
        memory = mmap.mmap(file, parts[-1][1])
    finally:
        os.close(file)
    return _carried(memory, parts, chunk)


def _carried(contents: Any, parts: list[tuple[int, int]], chunk: bytes) -> Any:
    """In the training process: the chunk whose buffers lie in these contents."""
    memory = memoryview(contents)
    return pickle.loads(chunk, buffers=[memory[start:stop] for start, stop in parts])


def _open(process: int, descriptor: int) -> int:
    """A descriptor of this process's own for another's file."""
    return os.open(FILES.format(process=process, descriptor=descriptor), os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def _await_end(process: int) -> None:
    """A dying worker's files go before its threads do: wait until it is seen to be dead, or torch won't say so."""
    for child in multiprocessing.active_children():
        if child.pid == process:
            child.join(END_TIMEOUT_S)


def _identity() -> tuple[Any, ...]:
    """What Linux compares before one process may open another's files: users, groups, whether it is readable at all."""
    return os.getresuid(), os.getresgid(), ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)


def possible() -> bool:
    """Whether this process can open a child's memory file: tried out with a child that lives for milliseconds."""
    try:
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "no anonymous memory files here")
        descriptor = os.memfd_create("lbbsp-probe", os.MFD_CLOEXEC)
        try:
            return _child_opened(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        log.debug("chunks go the way of torch's own tensors, no memory file of a child can be opened: %s", error)
        return False


def _child_opened(descriptor: int) -> bool:
    waits = [sys.executable, "-I", "-S", "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[descriptor]) as child:
        try:
            file = _open(child.pid, descriptor)
            try:
                return os.path.sameopenfile(file, descriptor)
            finally:
                os.close(file)
        finally:
            child.kill()
