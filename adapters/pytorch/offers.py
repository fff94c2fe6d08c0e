"""What this rank offers to the job: the caller's settings, and what model, loader and machine say of themselves."""

import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch.utils.data import IterableDataset, default_collate

from lbbsp.adapters.pytorch import chunks, planned
from lbbsp.adapters.pytorch.memory import gpu_uuid, most_samples
from lbbsp.adapters.pytorch.models import bounds_minimum, device_of, has_batch_norm, is_compiled, unwrap
from lbbsp.adapters.pytorch.order import of_loader
from lbbsp.errors import ConfigError
from lbbsp.worker.choice import choice_problem
from lbbsp.worker.identity import device_name, machine_name, run_name
from lbbsp.worker.keyfile import key_problem
from lbbsp.worker.session import manager_address
from lbbsp.worker.terms import Offer

MODES = ("balance", "observe")
REDUCTIONS = ("mean", "sum")
AFFORDABLE_S = 0.005
"""A user's collate function may take this long a batch in the training thread."""
PROBED = 8

_NUMBERS = itertools.count(1)
"""Of the balancers that this process makes."""

log = logging.getLogger(__name__)


class Settings(TypedDict, total=False):
    """What the caller may settle; see balance()."""

    global_batch: int | None
    min_samples: int | None
    max_samples: int | None
    granularity: int
    manager: str | None
    job: str | None
    mode: str
    predictor: str | None
    rule: str | None
    reduction: str
    chunks: str
    cost: Callable[[Any], float] | None


def of_loose_loop(models: Sequence[Any], settings: Settings) -> Offer:
    """The offer of a loop without a DataLoader."""
    made = _plain(models, settings)
    if made.global_batch is None and made.problem is None:
        return replace(made, problem="a loop without a DataLoader has no batch size of its own: give global_batch=")
    return made


def with_loader(models: Sequence[Any], loader: Any, settings: Settings) -> Offer:
    """The offer of a loop with a DataLoader; what can't be served becomes its problem, told to all ranks."""
    made = _plain(models, settings)
    try:
        planned.check(loader)
        samples = None if is_stream(loader) else of_loader(loader).samples
    except ConfigError as error:
        return replace(made, problem=made.problem or str(error))
    return replace(
        made,
        batch_samples=planned.batch_samples(loader),
        dataset_samples=samples,
        lookahead=0 if is_stream(loader) else planned.lookahead(loader),
        chunks=None if is_stream(loader) else _can_chunk(loader, settings.get("chunks", "auto")),
        chunk_depth=chunks.depth(loader),
        chunk_tasks=chunks.tasks(loader),
        drop_last=planned.drop_last(loader) or has_batch_norm([unwrap(model) for model in models]),
    )


def _can_chunk(loader: Any, choice: str) -> bool | None:
    """Whether loader workers are to fetch chunks; None without workers."""
    if loader.num_workers == 0:
        return None
    if choice != "auto":
        return choice == "on"
    if loader.collate_fn is default_collate:
        return True
    cost_s = collating_s(loader)
    if cost_s <= AFFORDABLE_S:
        return True
    log.info(
        "this rank's collate_fn takes about %.1f ms a batch, too long for the training thread: whole batches are "
        "fetched ahead and sizes act %d iterations later; chunks='on' forces chunks",
        1e3 * cost_s,
        planned.lookahead(loader),
    )
    return False


def collating_s(loader: Any) -> float:
    """About how long the user's collate function takes for a batch, from a few samples; seconds."""
    size = planned.batch_samples(loader)
    few = min(PROBED, len(loader.dataset))
    try:
        samples = [loader.dataset[index] for index in range(few)]
        began_s = time.perf_counter()
        loader.collate_fn(samples)
        return (time.perf_counter() - began_s) * size / max(1, few)
    except Exception:  # whatever it is, the workers will meet it in their turn and tell
        return float("inf")


def is_stream(loader: Any) -> bool:
    """Whether the loader's data set has no positions."""
    return isinstance(loader.dataset, IterableDataset)


def _plain(models: Sequence[Any], settings: Settings) -> Offer:
    ddps = [unwrap(model) for model in models]
    device = device_of(ddps[0])
    nonce = uuid.uuid4().hex
    least = settings.get("min_samples")
    if least is None:
        least = bounds_minimum(ddps, any(is_compiled(model) for model in models))
    return Offer(
        batch_samples=0,
        dataset_samples=None,
        job=settings.get("job") or os.environ.get("LBBSP_JOB") or _run_name() or nonce,
        incarnation=nonce,
        seed=int(torch.initial_seed() % 2**31),
        global_batch=settings.get("global_batch"),
        min_samples=least,
        max_samples=most_samples(settings.get("max_samples"), ddps[0]),
        granularity=settings.get("granularity", 1),
        manager=manager_address(settings.get("manager")),
        mode=settings.get("mode", "balance"),
        predictor=settings.get("predictor"),
        rule=settings.get("rule"),
        device_kind=device.type,
        machine=machine_name(),
        device=device_name(device.type, device.index),
        gpu_uuid=gpu_uuid(device),
        problem=_unknown("mode", settings.get("mode", "balance"), MODES)
        or _unknown("reduction", settings.get("reduction", "mean"), REDUCTIONS)
        or _unknown("chunks", settings.get("chunks", "auto"), chunks.CHOICES)
        or key_problem(manager_address(settings.get("manager")))
        or choice_problem(settings.get("predictor"), settings.get("rule")),
    )


def _run_name() -> str | None:
    """What torchrun calls this job, so that a restart finds what was learnt; numbered where a process has several."""
    name, number = run_name(), next(_NUMBERS)
    return name if name is None or number == 1 else f"{name[:240]} {number}"


def _unknown(name: str, value: str, known: tuple[str, ...]) -> str | None:
    return None if value in known else f"unknown {name} {value!r}; known: {', '.join(known)}"
