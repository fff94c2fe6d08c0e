"""balance(model, loader): the two-line form."""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader

from lbbsp.adapters.pytorch import planned
from lbbsp.adapters.pytorch.balancer import Balancer
from lbbsp.adapters.pytorch.claims import ClaimsLoader, OneByOne
from lbbsp.adapters.pytorch.claims_offer import with_claims
from lbbsp.adapters.pytorch.loader import BalancedLoader
from lbbsp.adapters.pytorch.models import as_list, unwrap
from lbbsp.adapters.pytorch.offers import Settings, is_stream, with_loader
from lbbsp.adapters.pytorch.order import of_loader, sees_whole_set
from lbbsp.adapters.pytorch.stream import StreamLoader

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
    predictor: str | None = None,
    rule: str | None = None,
    reduction: str = "mean",
    chunks: str = "auto",
    claims: bool | str = False,
    cost: Callable[[Any], float] | None = None,
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
        job: a name for the job; default: LBBSP_JOB, else torchrun's run, else a new one each start.
        mode: "balance", or "observe": sizes stay equal and the manager's log says what balancing would save.
        predictor: what forecasts speeds, as in "auto" or "ema:alpha=0.5"; for the job's own manager: one from outside
            keeps its own choice. Default: LBBSP_MANAGER_PREDICTOR, else the manager's default.
        rule: what sizes follow: auto, speed, adaptive, leader-straggler, linear; likewise.
        reduction: what the loop's loss is over the rank's batch: "mean" or "sum".
        chunks: "on": loader workers fetch small chunks, and sizes act at once; "off": whole batches, and sizes act
            num_workers * prefetch_factor iterations later; "auto": on, unless a collate_fn of the user's is slow.
        claims: True: each item of the loader is an iteration, itself a loop over micro-batches, of which ranks claim a
            part where speeds change within iterations; "auto": only where the manager expects it to pay. See
            docs/claims.md.
        cost: cost(batch) counts what makes a batch dear (tokens, pixels), 0 or more; the manager then tells a rank
            that got dearer samples from one that is slow. Sizes still count samples.

    Returns:
        The model and a loader that stands in for the one given. Both untouched in a world of one rank or with
        LBBSP_DISABLE=1.

    Raises:
        UnsupportedError: a model, loader or loop that can't be served exactly; says what works.
        ConfigError: values that can't be met, or that differ between ranks.
    """
    if os.environ.get("LBBSP_DISABLE") == "1":
        return model, OneByOne(loader) if claims else loader
    models = as_list(model)
    if dist.get_world_size(unwrap(models[0]).process_group) == 1:
        return model, OneByOne(loader) if claims else loader
    settings = Settings(
        global_batch=global_batch,
        min_samples=min_samples,
        max_samples=max_samples,
        granularity=granularity,
        manager=manager,
        job=job,
        mode=mode,
        predictor=predictor,
        rule=rule,
        reduction=reduction,
        chunks=chunks,
        cost=cost,
    )
    offer = with_claims(with_loader(models, loader, settings), models, loader, claims, chunks)
    balancer = Balancer(models, offer, **settings)
    if is_stream(loader):
        balancer.control.prepare_gathers()
        return model, StreamLoader(loader, balancer)
    if balancer.session.rank == 0:
        _tell(balancer, loader)
    if balancer.terms.claims != "off":
        return model, ClaimsLoader(loader, of_loader(loader), balancer, models)
    return model, BalancedLoader(loader, of_loader(loader), balancer)


def _tell(balancer: Balancer, loader: "DataLoader[Any]") -> None:
    """What a user should know once."""
    terms = balancer.terms
    samples, batch = terms.dataset_samples or 0, terms.bounds.global_batch
    if sees_whole_set(loader):
        log.warning(
            "the loader was not sharded: each rank saw the whole data set in an epoch. Now the ranks share it, and "
            "an epoch has %s iterations of %d samples",
            terms.draws,
            batch,
        )
    if terms.drop_last and not planned.drop_last(loader) and samples % batch:
        log.warning(
            "the model has BatchNorm: each epoch's short last iteration (%d samples) is dropped", samples % batch
        )
    if terms.draws == 0:
        log.warning("the data set has %d samples, the global batch %d: an epoch has no iteration", samples, batch)
