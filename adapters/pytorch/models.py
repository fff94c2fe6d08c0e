"""What balance() must know of a model: its DDP wrapper, its device, what its layers ask of a batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from lbbsp.errors import UnsupportedError

FSDP = ("FullyShardedDataParallel", "FSDPModule")


def as_list(model: Any) -> list[Any]:
    """One model or several, as a list."""
    return list(model) if isinstance(model, list | tuple) else [model]


def unwrap(model: Any) -> DistributedDataParallel:
    """The DDP module of a model, compiled or not.

    Raises:
        UnsupportedError: the model is none; says what works.
    """
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return inner
    if any(base.__name__ in FSDP for base in type(inner).__mro__):
        raise UnsupportedError("FSDP shards parameters and is not served yet: use DistributedDataParallel")
    raise UnsupportedError(
        f"balance() needs a DistributedDataParallel model, got {type(inner).__name__}: wrap it first, "
        "model = DistributedDataParallel(model)"
    )


def is_compiled(model: Any) -> bool:
    """Whether torch.compile wraps the model or what DDP holds: size 1 would be compiled apart."""
    return hasattr(model, "_orig_mod") or hasattr(unwrap(model).module, "_orig_mod")


def has_batch_norm(models: Sequence[DistributedDataParallel]) -> bool:
    """Whether a layer couples the samples of a batch."""
    return any(isinstance(module, _BatchNorm) for model in models for module in model.modules())


def bounds_minimum(models: Sequence[DistributedDataParallel], compiled: bool) -> int:
    """Smallest batch: 2 with BatchNorm or torch.compile, else 1."""
    return 2 if compiled or has_batch_norm(models) else 1


def device_of(model: DistributedDataParallel) -> torch.device:
    """Where the model's parameters are."""
    return next(model.parameters()).device
