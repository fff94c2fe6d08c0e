"""balance(dataset, optimizer, strategy): the two-line form."""

import logging
import os
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tensorflow as tf

from lbbsp.adapters.tensorflow import chain, cluster, source
from lbbsp.adapters.tensorflow.dataset import BalancedDataset
from lbbsp.adapters.tensorflow.optimizers import as_list, problem
from lbbsp.adapters.tensorflow.servers import ServedDataset
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.worker.choice import choice_problem
from lbbsp.worker.identity import device_name, machine_name
from lbbsp.worker.keyfile import key_problem
from lbbsp.worker.session import manager_address
from lbbsp.worker.terms import Offer

log = logging.getLogger(__name__)

OptimizerT = TypeVar("OptimizerT")
MODES = ("balance", "observe")
REDUCTIONS = (None, "sum", "mean", "keras")


@dataclass(frozen=True)
class Data:
    """What the user's data says of itself."""

    source: source.Source | None
    batch_samples: int = 0
    drop_last: bool = False
    shuffle: bool = False
    lookahead: int = 0
    problem: str | None = None


def balance(
    dataset: Any,
    optimizer: OptimizerT,
    strategy: Any,
    *,
    global_batch: int | None = None,
    map: Callable[..., Any] | None = None,  # noqa: A002  (tf.data's name for it)
    shuffle: bool | None = None,
    seed: int | None = None,
    drop_last: bool | None = None,
    lookahead: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    granularity: int = 1,
    manager: str | None = None,
    job: str | None = None,
    mode: str = "balance",
    predictor: str | None = None,
    rule: str | None = None,
    reduction: str | None = None,
) -> tuple[Any, OptimizerT]:
    """Give each rank the part of every global batch that its speed deserves. All ranks must call.

    Args:
        dataset: arrays or tensors (alone, in a tuple or dict), a sequence of samples, or a tf.data pipeline of
            from_tensor_slices() or range() with shuffle, map, batch and prefetch; its batch size is the global batch.
        optimizer: a Keras optimizer made under strategy.scope(), or a list of all that the step applies; returned
            itself, its apply_gradients() balanced.
        strategy: a tf.distribute.MultiWorkerMirroredStrategy with one device in each process, or a
            ParameterServerStrategy, in the coordinator's process.
        global_batch: samples of one iteration over all ranks; needed where the dataset makes no batches.
        map: called with each rank's part of a batch, after slicing, as tf.data calls a map function.
        shuffle: a new permutation each epoch; default: whether the pipeline shuffles, False for arrays.
        seed: of the permutations; rank 0's counts; default: a new one each start.
        drop_last: leave out the short last iteration; default: as the pipeline's batch() says, else False.
        lookahead: batches to read ahead of the loop, in threads; each costs an iteration of freshness. Default: what
            the pipeline prefetches where it maps, else 0.
        min_samples: this rank's smallest batch, at least 1.
        max_samples: this rank's largest batch; default: the global batch.
        granularity: sizes are multiples of this.
        manager: its address; default: LBBSP_MANAGER, else rank 0 starts one of the job's own.
        job: a name for the job; default: LBBSP_JOB, else a new one each start.
        mode: "balance", or "observe": sizes stay equal and the manager's log says what balancing would save.
        predictor: what forecasts speeds, as in "auto" or "ema:alpha=0.5"; for the job's own manager: one from outside
            keeps its own choice. Default: LBBSP_MANAGER_PREDICTOR, else the manager's default.
        rule: what sizes follow: auto, speed, adaptive, leader-straggler, linear; likewise.
        reduction: what the loss is that the step differentiates. "sum": the sum over the rank's batch divided by the
            global batch (tf.nn.compute_average_loss). "mean": the mean over the rank's batch. "keras": that mean
            divided by the number of ranks, as Keras's Loss objects, compute_loss(), train_step() and fit() have it.
            Default: "sum" where the step reads `dataset.global_samples`, else "mean".

    Returns:
        A dataset that gives each rank its part of each global batch, to be passed to strategy.run() as it is (a
        BalancedDataset; a ServedDataset with parameter servers), and the optimizer.

    Raises:
        UnsupportedError: data, strategy or optimizer that can't be served exactly; says what works.
        ConfigError: values that can't be met, or that differ between ranks.
    """
    data = _data(dataset)
    offer = Offer(
        batch_samples=0,
        dataset_samples=data.source.samples if data.source else None,
        job=job or os.environ.get("LBBSP_JOB") or uuid.uuid4().hex,
        incarnation=uuid.uuid4().hex,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        global_batch=global_batch or data.batch_samples or None,
        min_samples=min_samples,
        max_samples=max_samples,
        granularity=granularity,
        lookahead=data.lookahead if lookahead is None else lookahead,
        drop_last=data.drop_last if drop_last is None else drop_last,
        manager=manager_address(manager),
        mode=mode,
        predictor=predictor,
        rule=rule,
        device_kind=cluster.device_kind(),
        machine=machine_name(),
        device=device_name(cluster.device_kind(), 0),
    )
    ours = (
        _problem(offer, reduction) or _unfit(optimizer) or key_problem(offer.manager) or choice_problem(predictor, rule)
    )
    offer = replace(offer, problem=data.problem or ours)
    shuffled = data.shuffle if shuffle is None else shuffle
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return _served(data, map, offer, optimizer, shuffled, reduction), optimizer
    here = cluster.place(strategy)
    mapped = data.source if map is None or data.source is None else source.Mapped(data.source, map)
    return BalancedDataset(strategy, here, mapped, offer, optimizer, shuffled, reduction), optimizer


def _served(
    data: Data,
    function: Callable[..., Any] | None,
    offer: Offer,
    optimizer: Any,
    shuffle: bool,
    reduction: str | None,
) -> ServedDataset:
    """The dataset of a coordinator, who offers for all its workers."""
    workers = cluster.workers()
    if reduction == "sum":
        offer = replace(offer, problem='with ParameterServerStrategy a step\'s loss is a "mean" over its own batch')
    offers = [replace(offer, lookahead=0, machine=name) for name in workers]
    if data.source is None or offer.problem is not None:
        raise UnsupportedError(offer.problem or "there is no source of samples")
    balanced = len(workers) > 1 and os.environ.get("LBBSP_DISABLE") != "1"
    return ServedDataset(data.source, function, offers, optimizer, shuffle, balanced)


def _data(dataset: Any) -> Data:
    """The data's source; what can't be served becomes a problem, told to all ranks."""
    try:
        if isinstance(dataset, tf.data.Dataset):
            made = chain.taken_apart(dataset)
            return Data(made.source, made.batch_samples, made.drop_last, made.shuffle, made.lookahead)
        return Data(source.of(dataset))
    except ConfigError as error:
        return Data(None, problem=str(error))


def _unfit(optimizer: Any) -> str | None:
    """Why an optimizer can't be balanced."""
    return next(filter(None, (problem(one) for one in as_list(optimizer))), None)


def _problem(offer: Offer, reduction: str | None) -> str | None:
    """What this rank can't meet."""
    if offer.mode not in MODES:
        return f"unknown mode {offer.mode!r}; known: {', '.join(MODES)}"
    if reduction not in REDUCTIONS:
        return f"unknown reduction {reduction!r}; known: {', '.join(filter(None, REDUCTIONS))}"
    if not offer.global_batch:
        return "the data makes no batches: give global_batch="
    if offer.min_samples < 1:
        return (
            f"min_samples {offer.min_samples}: some of TensorFlow's kernels (oneDNN's Conv2D) fail on a batch of 0; "
            "use 1 or more"
        )
    if offer.lookahead < 0:
        return f"lookahead {offer.lookahead} is no count: give the number of batches to read ahead, 0 or more"
    return None
