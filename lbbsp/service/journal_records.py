"""What a journal holds: records as msgpack, arrays as an extension of it. Data only, no code.

Times in seconds since the epoch, since a journal outlives the machine's clock of the moment.
"""

from typing import Any, TypeVar

import msgspec
import numpy as np

from lbbsp.protocol import Hello

T = TypeVar("T")
ARRAY = 1
KINDS = "fiub"


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """A manager has taken up this journal."""

    generation: int
    """Counts them: plans of a later one have higher versions."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """An incarnation of a job has begun: all its ranks were there."""

    job: str
    incarnation: str
    at_s: float
    hellos: tuple[Hello, ...]
    """In order of rank."""
    replaced: tuple[str, ...] = ()
    """Earlier incarnations, which are heard no more."""
    state: dict[str, Any] | None = None
    """What it took over from them: in this record, so that no kill can part the two."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True, tag="learnt"):
    """What its sizing core knew."""

    job: str
    incarnation: str
    at_s: float
    """When somebody last spoke for the job."""
    state: dict[str, Any]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """All its ranks have said bye; kept for a while, since a restart may follow."""

    job: str
    at_s: float


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, tag="forgotten"):
    """Nothing of the job counts any more."""

    job: str


Record = Opened | Started | Learnt | Ended | Forgotten


def _ext(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in KINDS:
        raise NotImplementedError(f"a journal can't hold {type(value).__name__}")
    head = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(head))


def _array(code: int, data: memoryview) -> Any:
    if code != ARRAY:
        raise msgspec.ValidationError(f"extension {code} is unknown")
    kind, shape, values = _head(bytes(data))
    try:
        dtype = np.dtype(kind)
        if dtype.kind not in KINDS:
            raise ValueError(f"an array of {kind}")
        return np.frombuffer(values, dtype).reshape(shape)
    except (TypeError, ValueError) as error:
        raise msgspec.ValidationError(str(error)) from error


_head = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], bytes]).decode
encode = msgspec.msgpack.Encoder(enc_hook=_ext).encode


def decode(data: bytes, kind: type[T]) -> T:
    """One value of this type.

    Raises:
        MsgspecError: it is none.
    """
    return msgspec.msgpack.decode(data, type=kind, ext_hook=_array)


read_record = msgspec.msgpack.Decoder(Record, ext_hook=_array).decode
