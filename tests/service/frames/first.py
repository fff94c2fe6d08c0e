"""The protocol as it was at first, kept as it was: an older peer for the tests. Never change it."""

from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL = 1
MAX_RANKS = 65_536
MAX_SAMPLES = 2**31 - 1

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAMPLES)]
Iteration = Annotated[int, Meta(ge=0, lt=2**62)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What every message carries: the job and the incarnation of it that speaks."""

    job: Name
    incarnation: Name


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """Worker to manager: at start, when the manager does not know the job, and after a resume."""

    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    global_batch: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
    min_samples: Count
    max_samples: Count
    granularity: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 1
    device_kind: Name = "cpu"
    machine: Name = "unknown"
    device: Name = "cpu"
    lookahead: Annotated[int, Meta(ge=0, le=65_536)] = 0
    sensors: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    mode: Name = "balance"
    protocol: int = PROTOCOL


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Worker to manager, once an iteration, when its last gradient is ready."""

    rank: Rank
    iteration: Iteration
    samples: Count
    """Samples of all draws of this iteration together."""
    own_time_s: Annotated[float, Meta(gt=0, le=1e6)]
    """Own work only; waits excluded."""
    draws: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 1
    """Draws in the iteration: above 1 where gradients are accumulated."""
    wait_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Waits for the other ranks in the iteration before this one."""
    input_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """The part of own_time_s spent waiting for the loader."""
    settled: bool = True
    """False: own_time_s holds one-off costs (warm-up, first time at this size) and says nothing of speed."""
    sensors: Annotated[tuple[float, ...], Meta(max_length=64)] = ()
    """Readings at the barrier in the order of Hello.sensors; NaN where there is none."""


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """Worker to manager: this rank ends its part of the job."""

    rank: Rank


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Manager to worker: the hello was taken."""

    rank: Rank
    protocol: int = PROTOCOL


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """Manager to worker: the hello can't be met; the reason says which value and what would work."""

    reason: str


class Unknown(Message, frozen=True, kw_only=True, tag="unknown"):
    """Manager to worker: I don't know this job or incarnation; say hello."""


class Plan(Message, frozen=True, kw_only=True, tag="plan"):
    """Manager to rank 0, once an iteration: the sizes to use from now on, changed or not."""

    version: Annotated[int, Meta(ge=0, lt=2**62)]
    """Counts the plans of this incarnation."""
    based_on_iteration: Iteration
    """The newest iteration whose reports went into it."""
    sizes: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_RANKS)]
    """Samples of each rank, in order of rank; they add up to the global batch."""


ToManager = Hello | Report | Bye
ToWorker = Welcome | Refused | Unknown | Plan

encode = msgspec.msgpack.Encoder().encode
decode_to_manager = msgspec.msgpack.Decoder(ToManager).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
