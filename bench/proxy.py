"""A TCP link of ours that fails on demand: cut, held, one-way, half-open, late or slow; it reads ZMTP on its way back.

Stands between ranks and a manager without keys. Runs in a thread of its own. Seconds, bytes.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from lbbsp.protocol import UNREADABLE, decode_to_worker

KINDS = ("cut", "reset", "held", "held_up", "held_down", "half_open", "late", "slow")
GREETING_BYTES = 64
READ_BYTES = 2**16
SLOW_BYTES = 200
"""A slow link passes so many at once."""


class Messages:
    """The manager's messages in a stream of ZMTP 3 without keys."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Any]:
        """What these bytes complete."""
        self._bytes += data
        if not self._greeted:
            if len(self._bytes) < GREETING_BYTES:
                return
            del self._bytes[:GREETING_BYTES]
            self._greeted = True
        while (body := self._frame()) is not None:
            try:
                yield decode_to_worker(body)
            except UNREADABLE:
                continue

    def _frame(self) -> bytes | None:
        """One frame's body; a command of ZMTP's own decodes to nothing."""
        head = 9 if self._bytes and self._bytes[0] & 2 else 2
        if len(self._bytes) < head:
            return None
        length = int.from_bytes(self._bytes[1:head], "big")
        if len(self._bytes) < head + length:
            return None
        body = bytes(self._bytes[head : head + length])
        del self._bytes[: head + length]
        return body


@dataclass(eq=False)
class Trouble:
    """What is wrong with a link for a while."""

    kind: str
    wait_s: float
    """Of each piece on a late or slow link."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    touched: int = 0
    """Pieces held, swallowed or late; connections cut or refused."""


@dataclass(eq=False)
class Connection:
    """Of one rank; both sides."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    trouble: Trouble | None = None

    def end(self) -> None:
        """Both sides see it."""
        for side in (self.near, self.far):
            side.transport.abort()


class Proxy(threading.Thread):
    """Listens on a port of 127.0.0.1 and passes on to another.

    Args:
        port: the manager's.
        saw: called with the moment and each message of the manager's, as it comes in here.
    """

    def __init__(self, port: int, saw: Callable[[float, Any], None]) -> None:
        super().__init__(name="proxy", daemon=True)
        self._port, self._saw = port, saw
        self._loop = asyncio.new_event_loop()
        self._connections: set[Connection] = set()
        self._trouble: Trouble | None = None
        self._ready = threading.Event()
        self._closing = asyncio.Event()
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self.join()

    @contextmanager
    def failing(self, kind: str, wait_s: float, one: bool) -> Iterator[Trouble]:
        """The link, or a single connection of it, is in this trouble meanwhile."""
        trouble = asyncio.run_coroutine_threadsafe(self._begin(kind, wait_s, one), self._loop).result()
        try:
            yield trouble
        finally:
            asyncio.run_coroutine_threadsafe(self._end(trouble), self._loop).result()

    # --- the proxy's thread

    def run(self) -> None:
        """Serve until stopped."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._closing.wait()
        server.close()
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._trouble is not None and self._trouble.kind == "cut":
            self._trouble.touched += 1
            near.transport.abort()
            return
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            near.transport.abort()
            return
        connection = Connection(near, far)
        self._connections.add(connection)
        try:
            down = asyncio.create_task(self._pass(connection, far_reader, near, Messages()))
            await asyncio.gather(down, self._pass(connection, reader, far, None))
        finally:
            self._connections.discard(connection)
            connection.end()

    async def _pass(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Messages | None
    ) -> None:
        """One direction; with `seen` the one from the manager."""
        try:
            while data := await reader.read(READ_BYTES):
                for message in seen.feed(data) if seen else ():
                    self._saw(time.perf_counter(), message)
                if trouble := connection.trouble or self._trouble:
                    data = await self._suffer(trouble, writer, data, down=seen is not None)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        trouble = connection.trouble or self._trouble
        if trouble is not None and trouble.kind == "half_open":
            await trouble.over.wait()
        connection.end()

    async def _suffer(self, trouble: Trouble, writer: asyncio.StreamWriter, data: bytes, *, down: bool) -> bytes:
        """What is left to send of the data once the trouble had its way with it."""
        match trouble.kind, down:
            case ("held", _) | ("held_up", False) | ("held_down", True):
                trouble.touched += 1
                await trouble.over.wait()
            case ("half_open", _):
                trouble.touched += 1
                return b""
            case ("late", _):
                trouble.touched += 1
                await asyncio.sleep(trouble.wait_s)
            case ("slow", _):
                trouble.touched += 1
                while len(data) > SLOW_BYTES and not trouble.over.is_set():
                    writer.write(data[:SLOW_BYTES])
                    data = data[SLOW_BYTES:]
                    await asyncio.sleep(trouble.wait_s)
                await asyncio.sleep(trouble.wait_s)
        return data

    async def _begin(self, kind: str, wait_s: float, one: bool) -> Trouble:
        trouble = Trouble(kind, wait_s)
        hit = list(self._connections)
        if one and hit:
            hit[0].trouble = trouble
            hit = hit[:1]
        else:
            self._trouble = trouble
        for connection in hit:
            if kind in ("cut", "reset", "half_open"):
                trouble.touched += 1
            if kind in ("cut", "reset"):
                connection.end()
            elif kind == "half_open":
                connection.far.transport.abort()
        return trouble

    async def _end(self, trouble: Trouble) -> None:
        trouble.over.set()
        if self._trouble is trouble:
            self._trouble = None
        for connection in list(self._connections):
            if connection.trouble is trouble:
                connection.trouble = None
            if trouble.kind == "half_open":
                connection.end()
