"""What the ranks of a job settle before the first iteration: global batch, bounds, lookahead, seed, names.

Each rank makes an Offer; all gather all offers and call settle(), which is pure, so that all come to the same terms
or raise the same error. Batches in samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lbbsp.core.bounds import Bounds
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.protocol import Hello


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one rank brings."""

    batch_samples: int
    """The rank's batch size as its loader has it: its part of X where the user names no global batch."""
    dataset_samples: int | None
    """Samples in the order that all share; None where the data has no length."""
    job: str
    """Job id; rank 0's counts."""
    incarnation: str
    """A nonce of this start; rank 0's counts."""
    seed: int = 0
    """Seeds the order of plain samplers; rank 0's counts."""
    global_batch: int | None = None
    min_samples: int = 1
    max_samples: int | None = None
    granularity: int = 1
    lookahead: int = 0
    chunks: bool | None = None
    """Whether this rank's loader workers can fetch chunks instead of whole batches; None without workers."""
    chunk_depth: int = 0
    """Iterations that chunks would be fetched ahead."""
    chunk_tasks: int = 1
    """Loader tasks that an iteration would be dealt into."""
    drop_last: bool = False
    manager: str | None = None
    predictor: str | None = None
    """For a manager of the job's own; None: as the environment or its default says."""
    rule: str | None = None
    mode: str = "balance"
    claims: str = "off"
    device_kind: str = "cpu"
    machine: str = "unknown"
    device: str = "cpu"
    gpu_uuid: str | None = None
    """As NVML names the rank's GPU; None where it is not known."""
    problem: str | None = None
    """Why this rank can't take part; raised on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for the job, the same on all ranks."""

    job: str
    incarnation: str
    bounds: Bounds
    lookahead: int
    """Batches that sizes act later, the most of any rank; 0 where chunks are fetched."""
    chunks: bool
    """Loader workers fetch chunks: decided once, for all ranks."""
    chunk_depth: int
    """The most iterations that any rank fetches chunks ahead."""
    dataset_samples: int | None
    drop_last: bool
    seed: int
    mode: str
    claims: str = "off"
    """`on` or `auto`: a part of each iteration may be claimed."""

    @property
    def draws(self) -> int | None:
        """Iterations in an epoch: ceil(N / X), floor with drop_last."""
        if self.dataset_samples is None:
            return None
        full, rest = divmod(self.dataset_samples, self.bounds.global_batch)
        return full + (1 if rest and not self.drop_last else 0)


ALIKE = ("global_batch", "granularity", "dataset_samples", "mode", "manager", "predictor", "rule", "claims")


def settle(offers: Sequence[Offer]) -> Terms:
    """The terms of the job.

    Raises:
        UnsupportedError: a rank can't take part.
        ConfigError: ranks disagree on what must be alike.
        BoundsError: no plan fits the bounds.
    """
    for rank, offer in enumerate(offers):
        if offer.problem is not None:
            raise UnsupportedError(f"rank {rank}: {offer.problem}" if len(offers) > 1 else offer.problem)
    for name in ALIKE:
        _require_alike(name, [getattr(offer, name) for offer in offers])
    first = offers[0]
    named = first.global_batch
    global_batch = sum(offer.batch_samples for offer in offers) if named is None else named
    most = [global_batch if offer.max_samples is None else offer.max_samples for offer in offers]
    bounds = Bounds(
        global_batch,
        np.array([offer.min_samples for offer in offers]),
        np.minimum(most, global_batch),
        first.granularity,
    )
    bounds.check()
    able = [offer.chunks for offer in offers if offer.chunks is not None]
    chunks = bool(able) and all(able)
    return Terms(
        job=first.job,
        incarnation=first.incarnation,
        bounds=bounds,
        lookahead=0 if chunks else max(offer.lookahead for offer in offers),
        chunks=chunks,
        chunk_depth=max(offer.chunk_depth for offer in offers) if chunks else 0,
        dataset_samples=first.dataset_samples,
        drop_last=any(offer.drop_last for offer in offers),
        seed=first.seed,
        mode=first.mode,
        claims=first.claims,
    )


def hello(terms: Terms, offer: Offer, rank: int, sensors: tuple[str, ...], loads: int = 0) -> Hello:
    """What a rank says to the manager; `loads` counts the resumes within this start."""
    return Hello(
        job=terms.job,
        incarnation=f"{terms.incarnation}.{loads}" if loads else terms.incarnation,
        rank=rank,
        world_size=terms.bounds.world_size,
        global_batch=terms.bounds.global_batch,
        min_samples=int(terms.bounds.min_samples[rank]),
        max_samples=int(terms.bounds.max_samples[rank]),
        granularity=terms.bounds.granularity,
        device_kind=offer.device_kind,
        machine=offer.machine,
        device=offer.device,
        lookahead=terms.lookahead,
        reads_ahead=terms.chunk_depth,
        sensors=sensors,
        mode=terms.mode,
        claims=terms.claims,
    )


def _require_alike(name: str, values: list[Any]) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise ConfigError(
                f"rank {rank} has {name} {value!r}, rank 0 has {values[0]!r}: give every rank the same {name}"
            )
