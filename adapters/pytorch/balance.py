"""balance(model, loader): the two-line form."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader

from lbbsp.adapters.pytorch import planned
from lbbsp.adapters.pytorch.balancer import MODES, REDUCTIONS, Balancer, offer
from lbbsp.adapters.pytorch.loader import BalancedLoader
from lbbsp.adapters.pytorch.models import has_batch_norm, unwrap
from lbbsp.adapters.pytorch.order import of_loader, sees_whole_set
from lbbsp.errors import ConfigError
from lbbsp.worker.terms import Offer

log = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")


def balance(
    model: ModelT,
    loader: "DataLoader[Any]",
    *,
    global_batch: int | None = None,
    min_samples: int | None = None,
    max_samples: int | None = None,
    granularity: int = 1,
    manager: str | None = None,
    job: str | None = None,
    mode: str = "balance",
    reduction: str = "mean",
) -> tuple[ModelT, Any]:
    """Give each rank the part of every global batch that its speed deserves. All ranks must call.

    Args:
        model: a DistributedDataParallel model, compiled or not, or a list of them.
        loader: the DataLoader that the loop already has.
        global_batch: samples of one iteration over all ranks; default: the sum of the ranks' batch sizes.
        min_samples: this rank's smallest batch; default 1, or 2 with BatchNorm or torch.compile.
        max_samples: this rank's largest batch; default: the global batch.
        granularity: sizes are multiples of this.
        manager: its address; default: LBBSP_MANAGER, else rank 0 starts one of the job's own.
        job: a name for the job; default: LBBSP_JOB, else a new one each start.
        mode: "balance", or "observe": sizes stay equal and the manager's log says what balancing would save.
        reduction: what the loop's loss is over the rank's batch: "mean" or "sum".

    Returns:
        The model and a loader that stands in for the one given. Both untouched in a world of one rank or with
        LBBSP_DISABLE=1.

    Raises:
        UnsupportedError: a model, loader or loop that can't be served exactly; says what works.
        ConfigError: values that can't be met, or that differ between ranks.
    """
    if os.environ.get("LBBSP_DISABLE") == "1":
        return model, loader
    models = list(model) if isinstance(model, list | tuple) else [model]
    if dist.get_world_size(unwrap(models[0]).process_group) == 1:
        return model, loader
    wanted = _checked_choices(mode, reduction)
    made = offer(
        models,
        batch_samples=0,
        dataset_samples=None,
        global_batch=global_batch,
        min_samples=min_samples,
        max_samples=max_samples,
        granularity=granularity,
        manager=manager,
        job=job,
        mode=mode,
        problem=wanted,
    )
    balancer = Balancer(models, _with_loader(made, models, loader), reduction=reduction)
    balanced = BalancedLoader(loader, of_loader(loader, balancer.terms.seed), balancer)
    if balancer.session.rank == 0:
        _tell(balancer, loader)
    return model, balanced


def _checked_choices(mode: str, reduction: str) -> str | None:
    if mode not in MODES:
        return f"unknown mode {mode!r}; known: {', '.join(MODES)}"
    if reduction not in REDUCTIONS:
        return f"unknown reduction {reduction!r}; known: {', '.join(REDUCTIONS)}"
    return None


def _with_loader(made: Offer, models: Sequence[Any], loader: Any) -> Offer:
    """The offer with what the loader says; what it can't do becomes the offer's problem, told to all ranks."""
    try:
        planned.check(loader)
        order = of_loader(loader, 0)
    except ConfigError as error:
        return replace(made, problem=made.problem or str(error))
    return replace(
        made,
        batch_samples=planned.batch_samples(loader),
        dataset_samples=order.samples,
        lookahead=planned.lookahead(loader),
        drop_last=_drop_last(loader) or has_batch_norm([unwrap(model) for model in models]),
    )


def _drop_last(loader: "DataLoader[Any]") -> bool:
    return bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False))


def _tell(balancer: Balancer, loader: "DataLoader[Any]") -> None:
    """What a user should know once."""
    terms = balancer.terms
    batch = terms.bounds.global_batch
    if sees_whole_set(loader):
        log.warning(
            "the loader was not sharded: each rank saw the whole data set in an epoch. Now the ranks share it, and an "
            "epoch has %s iterations of %d samples",
            terms.draws,
            batch,
        )
    samples = terms.dataset_samples or 0
    if terms.drop_last and not _drop_last(loader) and samples % batch:
        log.warning(
            "the model has BatchNorm: the short last iteration of %d samples is dropped in each epoch",
            samples % batch,
        )
    if terms.draws == 0:
        log.warning(
            "the data set has %d samples and the global batch is %d: an epoch has no iteration",
            samples,
            batch,
        )
