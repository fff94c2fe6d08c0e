"""Messages on the wire between workers and the manager: frozen msgspec structs, a tagged union, msgpack.

Knows nothing of sockets. A later field carries a default, so that an older peer keeps working; a change that
breaks older peers raises PROTOCOL. Times in seconds, batches in samples. One frame holds one message.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL = 1
OLDEST = max(1, PROTOCOL - 1)
"""The oldest that this version still speaks: that of the release before."""
MAX_RANKS = 65_536
MAX_SAMPLES = 2**31 - 1
MOST_TOGETHER = 32
"""Iterations that a report may be of, or that a rank may tell of at once."""
LANE = r"\A(lbbsp-[0-9a-f]{32})?\Z"

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
    reads_ahead: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Iterations that loader workers fetch ahead in chunks: what a plan moves late is read at the draw."""
    mode: Name = "balance"
    claims: Name = "off"
    """`on`, or `auto`: ranks claim a part of each iteration where that pays."""
    protocol: int = PROTOCOL
    oldest: int = OLDEST
    """The oldest protocol that the speaker also understands; the newest that both do is spoken."""


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Worker to manager, once an iteration, when its last gradient is ready; where nothing changes once in several."""

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
    max_samples: Count = 0
    """The most that fit this rank's memory now; 0 says nothing."""
    cost: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    """Of all samples together by the user's own count (tokens, pixels); 0 = not counted."""
    planned: Count = 0
    """Of the samples, those that were this rank's by plan, where it claims; 0 and 0 claimed: it does not ..."""
    claimed: Count = 0
    """... and those that it claimed."""
    fixed_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """What each of its micro-batches costs beside the samples, where it claims; 0: not known."""
    phases_s: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e6)], ...], Meta(max_length=8)] = ()
    """Of own_time_s: from the draws to the forward passes, forward, backward; empty in iterations not looked at."""
    together: Annotated[int, Meta(ge=1, le=MOST_TOGETHER)] = 1
    """The most iterations that this rank tells of at once: other ranks' reports of this one may come so much later."""
    iterations: Annotated[int, Meta(ge=1, le=MOST_TOGETHER)] = 1
    """It is of so many, alike, the last of which is `iteration`: times and costs are their means."""
    held_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """How long it was held back for that."""


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """Worker to manager: this rank ends its part of the job."""

    rank: Rank


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """Whoever may connect to the manager: show a job. No job is joined by it, and no size moves."""

    job: Annotated[str, Meta(max_length=256)] = ""
    """Empty: the jobs there are."""
    first: Rank = 0
    most: Annotated[int, Meta(ge=1, le=1024)] = 1024
    """Ranks to show, from the first on."""
    thresholds: Annotated[dict[str, float], Meta(max_length=32)] = {}
    """Thresholds of detectors to change first, as in {"rolling.ratio": 1.4}."""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Manager to worker: the hello was taken."""

    rank: Rank
    protocol: int = PROTOCOL
    """The one that is spoken with this rank."""
    sensors_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Iterations between readings of sensors that reports are to carry; those between carry none."""
    lane: Annotated[str, Meta(pattern=LANE)] = ""
    """Name of the manager's socket for ranks on its own machine; empty: none ..."""
    token: Annotated[bytes, Meta(max_length=64)] = b""
    """... the first packet there, good once ..."""
    answer: Annotated[bytes, Meta(max_length=64)] = b""
    """... and the first packet from there: the lane is open."""
    together: Annotated[int, Meta(ge=1, le=1_024)] = 1
    """The most iterations that a report may be of, where nothing changes."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """Manager to worker: the hello can't be met; the reason says which value and what would work."""

    reason: str


class Unknown(Message, frozen=True, kw_only=True, tag="unknown"):
    """Manager to worker: I don't know this job or incarnation; say hello."""


class Plan(Message, frozen=True, kw_only=True, tag="plan"):
    """Manager to rank 0, once an iteration: the sizes to use from now on, changed or not."""

    version: Annotated[int, Meta(ge=0, lt=2**62)]
    """Rises with each plan of an incarnation, across restarts of a manager that has a journal too."""
    based_on_iteration: Iteration
    """The newest iteration whose reports went into it."""
    sizes: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_RANKS)]
    """Samples of each rank, in order of rank; they add up to the global batch."""
    beta: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of its size that each rank works without asking; the rest is claimed, chunk by chunk."""
    chunk: Count = 0
    """The least that a rank of equal share claims at once, in samples; 0 leaves it to the ranks."""
    sensors_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Iterations between readings of sensors from now on; 0: as the welcome says."""


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is slow, or that has more to do than others, and why."""

    rank: int
    slow: bool
    """False: it was given more and is not slow."""
    since: int
    """Iteration; -1 where not slow."""
    slowdown: float
    """Times slower than expected."""
    lasting: bool
    detectors: tuple[str, ...]
    cause: str
    evidence: str


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag="seen"):
    """Manager to whoever looked: a job at this moment; arrays have one entry for each rank shown."""

    jobs: tuple[str, ...]
    """All that it has, the first 1,000."""
    job: str = ""
    """Empty where there is no such job, or none was asked for."""
    problem: str = ""
    """Why thresholds were not changed."""
    incarnation: str = ""
    world_size: int = 0
    global_batch: int = 0
    iteration: int = -1
    iteration_time_s: float = 0.0
    wait_share: float = 0.0
    lag: int = 0
    mode: str = ""
    predictor: str = ""
    forecast_error_percent: float = float("nan")
    plan_changes: int = 0
    saved_share: float = 0.0
    first: int = 0
    machines: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    own_time_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    relative_speed: tuple[float, ...] = ()
    """Of the job's median; NaN before any."""
    forecast_error: tuple[float, ...] = ()
    """Recent mean, as a share."""
    flags: tuple[Flag, ...] = ()
    thresholds: dict[str, float] = {}


ToManager = Hello | Report | Bye | Look
ToWorker = Welcome | Refused | Unknown | Plan

encode = msgspec.msgpack.Encoder().encode
decode_to_manager = msgspec.msgpack.Decoder(ToManager).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_seen = msgspec.msgpack.Decoder(Seen).decode
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises: bytes that are no message, text that is no UTF-8, lists nested without end."""


class EmbeddedOrders(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 to the manager that it starts, one line of JSON on its standard input."""

    parent: int
    """Process id; the manager ends when this is its parent no longer."""
    server_secret: str
    """CURVE, Z85 text."""
    clients: tuple[str, ...]
    """Public keys of those who may connect."""


class EmbeddedReady(msgspec.Struct, frozen=True, kw_only=True):
    """The embedded manager's answer, one line of JSON on its standard output."""

    address: str
