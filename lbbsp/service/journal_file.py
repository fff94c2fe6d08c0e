"""A journal's file, byte by byte: one line that names the format, then records, each with length and checksum.

A record: its length and the CRC-32 of length and payload, 4 bytes each, little-endian; then the payload. What follows
the last sound record is a torn tail. Knows nothing of what payloads say.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lbbsp.errors import ConfigError

FORMAT = 1
NAME = b"lbbsp journal "
HEADER = NAME + b"%d\n" % FORMAT
MOST_BYTES = 256 * 2**20
"""Of a payload; a longer one is none of ours."""
_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    """The record of a payload."""
    length = _LENGTH.pack(len(payload))
    return length + _LENGTH.pack(zlib.crc32(payload, zlib.crc32(length))) + payload


def recognise(path: Path, start: bytes) -> None:
    """Return where a file that starts so is a journal that we can read, or an empty file.

    Raises:
        ConfigError: it is something else, or of another format.
    """
    if start.startswith(HEADER) or not start:
        return
    if start.startswith(NAME):
        came = start[len(NAME) :].split(b"\n")[0][:20].decode(errors="replace")
        raise ConfigError(
            f"{path} is a journal of format {came}, this version reads {FORMAT}: "
            "install a newer lbbsp, or give another file"
        )
    raise ConfigError(f"{path} is no journal of lbbsp (it starts with {start[:16]!r}): give another file")


def payloads(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The payloads after the header and where each record ends, up to the first that is not whole and sound."""
    place = file.seek(len(HEADER))
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        if length > MOST_BYTES:
            return
        payload = file.read(length)
        if len(payload) != length or zlib.crc32(payload, zlib.crc32(head[:4])) != checksum:
            return
        place += len(head) + length
        yield payload, place


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte. Raises OSError, after part of it perhaps."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(path: Path) -> None:
    """Make a rename in this folder last."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
