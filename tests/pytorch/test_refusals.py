"""What can't be served exactly is refused by name, on all ranks; what needs no balancing is left alone."""

import threading
from typing import Any

import pytest
import torch
from epochs import Numbers
from random_manager import ScriptedManager
from ranks import outcomes, run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.errors import BoundsError, ConfigError, OutOfStepError, UnsupportedError


class OwnSharding(DistributedSampler[int]):
    """A sharded sampler that is not torch's."""


class OwnBatches(BatchSampler):
    """Batches of changing size."""


def ddp(width: int = 1) -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Linear(width, 1))


def loader(rank: int, **options: Any) -> "DataLoader[int]":
    data = Numbers(64)
    if not {"sampler", "batch_sampler"} & set(options):
        options["sampler"] = DistributedSampler(data, 2, rank)
    return DataLoader(data, **({"batch_size": 4} | options))


def _fsdp(rank: int) -> None:
    class FullyShardedDataParallel(torch.nn.Linear):
        pass

    balance(FullyShardedDataParallel(1, 1), loader(rank))


def _no_ddp(rank: int) -> None:
    balance(torch.nn.Linear(1, 1), loader(rank))


def _own_sharding(rank: int) -> None:
    balance(ddp(), loader(rank, sampler=OwnSharding(Numbers(64), 2, rank)))


def _variable(rank: int) -> None:
    batches = OwnBatches(SequentialSampler(Numbers(64)), 4, False)
    balance(ddp(), DataLoader(Numbers(64), batch_sampler=batches))


def _no_batch(rank: int) -> None:
    balance(ddp(), loader(rank, batch_size=None))


def _any_order(rank: int) -> None:
    balance(ddp(), loader(rank, num_workers=1, in_order=False))


def _one_rank_only(rank: int) -> None:
    balance(ddp(), loader(rank, batch_size=None) if rank else loader(rank))


def _no_loader(rank: int) -> None:
    balance(ddp(), [1, 2, 3])


def _mode(rank: int) -> None:
    balance(ddp(), loader(rank), mode="sometimes")


def _granularity(rank: int) -> None:
    balance(ddp(), loader(rank), granularity=1 + rank)


def _global_batch(rank: int) -> None:
    balance(ddp(), loader(rank), global_batch=8 + rank)


def _too_small(rank: int) -> None:
    balance(ddp(), loader(rank), global_batch=1)


def _impossible(rank: int) -> None:
    balance(ddp(), loader(rank), max_samples=3)


def _other_data(rank: int) -> None:
    balance(ddp(), DataLoader(Numbers(64 + rank), batch_size=4))


def _thread(rank: int) -> None:
    _model, batches = balance(ddp(), loader(rank))
    caught: list[BaseException] = []

    def draw() -> None:
        try:
            next(iter(batches))
        except UnsupportedError as error:
            caught.append(error)

    other = threading.Thread(target=draw, name="reader")
    other.start()
    other.join()
    batches.balancer.close()
    raise caught[0]


def _join(rank: int) -> None:
    model, batches = balance(ddp(), loader(rank))
    with model.join():
        for batch in batches:
            model(batch.float().reshape(-1, 1)).mean().backward()


REFUSED = {
    "FSDP": (_fsdp, UnsupportedError),
    "DistributedDataParallel": (_no_ddp, UnsupportedError),
    "OwnSharding": (_own_sharding, UnsupportedError),
    "OwnBatches": (_variable, UnsupportedError),
    "batch_size=None": (_no_batch, UnsupportedError),
    "in_order=False": (_any_order, UnsupportedError),
    "rank 1: batch_size=None": (_one_rank_only, UnsupportedError),
    "DataLoader": (_no_loader, UnsupportedError),
    "sometimes": (_mode, ConfigError),
    "granularity": (_granularity, ConfigError),
    "global_batch": (_global_batch, ConfigError),
    "global batch": (_too_small, BoundsError),
    "maxima": (_impossible, BoundsError),
    "dataset_samples": (_other_data, ConfigError),
    "reader": (_thread, UnsupportedError),
    "Join": (_join, UnsupportedError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_on_all_ranks(name: str) -> None:
    case, kind = REFUSED[name]
    with ScriptedManager() as manager:
        ended = outcomes(2, case, env=manager.env, timeout_s=20)
    for rank, outcome in enumerate(ended):
        assert outcome.error is not None, f"rank {rank} went on"
        said, _, text = outcome.error.partition(": ")
        assert issubclass({cls.__name__: cls for cls in (ConfigError, BoundsError, UnsupportedError)}[said], kind)
        assert name in text, outcome.error


def _untouched(rank: int) -> tuple[bool, bool]:
    model, given = ddp(), loader(rank)
    same_model, same_loader = balance(model, given)
    return same_model is model, same_loader is given


def test_a_world_of_one_is_left_alone() -> None:
    assert run(1, _untouched) == [(True, True)]


def test_disabled_is_left_alone() -> None:
    assert run(2, _untouched, env={"LBBSP_DISABLE": "1"}) == [(True, True)] * 2


def _out_of_step(rank: int) -> None:
    model, batches = balance(ddp(), loader(rank))
    batches.sampler.set_epoch(rank)
    for batch in batches:
        model(batch.float().reshape(-1, 1)).mean().backward()


def _skips(rank: int) -> None:
    model, batches = balance(ddp(), loader(rank))
    for number, batch in enumerate(batches):
        if rank and number == 3:
            continue
        model(batch.float().reshape(-1, 1)).mean().backward()


def _other_order(rank: int) -> None:
    model, batches = balance(ddp(), DataLoader(Numbers(64), batch_size=4, sampler=list(range(rank, 64)) + [0] * rank))
    for batch in batches:
        model(batch.float().reshape(-1, 1)).mean().backward()


@pytest.mark.parametrize("case", [_out_of_step, _skips, _other_order])
def test_ranks_out_of_step_are_told(case: Any) -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, case, env=manager.env, timeout_s=45)
    assert (ended[1].error or "").startswith(OutOfStepError.__name__), ended


def _raises(rank: int) -> None:
    model, batches = balance(ddp(), loader(rank))
    for number, batch in enumerate(batches):
        if rank == 1 and number == 4:
            raise KeyError("the user's own")
        model(batch.float().reshape(-1, 1)).mean().backward()


def _ends_early(rank: int) -> None:
    model, batches = balance(ddp(), loader(rank))
    for number, batch in enumerate(batches):
        if rank == 0 and number == 4:
            return
        model(batch.float().reshape(-1, 1)).mean().backward()


@pytest.mark.parametrize(("case", "leaver"), [(_raises, 1), (_ends_early, 0)])
def test_when_a_rank_leaves_the_others_get_torchs_own_error(case: Any, leaver: int) -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, case, env=manager.env, timeout_s=45)
    assert (ended[leaver].error or "KeyError").startswith("KeyError")
    assert (ended[1 - leaver].error or "").startswith(("RuntimeError", "DistBackendError")), ended
