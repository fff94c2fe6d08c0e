"""What balance() must know of a strategy: whether it can be served, this process's rank, where rank 0 is."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lbbsp.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class Place:
    """This process in its cluster."""

    rank: int
    world_size: int
    chief_host: str
    """Host of rank 0, as the cluster's specification names it."""


def place(strategy: Any) -> Place:
    """This process's place in a MultiWorkerMirroredStrategy.

    Raises:
        UnsupportedError: another strategy, or several devices in this process; says what works.
        ConfigError: called inside strategy.scope().
    """
    _outside()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise UnsupportedError(_refusal(strategy))
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
    members = [(kind, index) for kind in ("chief", "worker") for index in range(len(spec.get(kind, ())))]
    world_size = max(1, len(members))
    if strategy.num_replicas_in_sync != world_size:
        raise UnsupportedError(
            f"{strategy.num_replicas_in_sync} replicas in {world_size} processes: start one process for each device "
            "(CUDA_VISIBLE_DEVICES), so that each gets a batch of its own"
        )
    if world_size == 1:
        return Place(0, 1, "127.0.0.1")
    rank = members.index((resolver.task_type, resolver.task_id))
    kind, index = members[0]
    return Place(rank, world_size, str(spec[kind][index]).rpartition(":")[0].strip("[]"))


def workers() -> list[str]:
    """The names of a ParameterServerStrategy's workers, in order.

    Raises:
        ConfigError: called inside strategy.scope().
    """
    _outside()
    places = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices("CPU")]
    tasks = sorted({int(place.task or 0) for place in places if place.job == "worker"})
    return [f"worker/{task}" for task in tasks]


def _outside() -> None:
    if tf.distribute.has_strategy():
        raise ConfigError("balance() was called inside strategy.scope(): call it after the scope has ended")


def _refusal(strategy: Any) -> str:
    name = type(strategy).__name__
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return (
            f"{name} runs all devices from one process, in step by construction: use "
            "tf.distribute.MultiWorkerMirroredStrategy with one process for each device"
        )
    return (
        f"balance() serves tf.distribute.MultiWorkerMirroredStrategy and ParameterServerStrategy, got {name}: "
        "use one of these"
    )


def device_kind() -> str:
    """ "gpu" where this process trains on one, else "cpu"."""
    return "gpu" if tf.config.list_logical_devices("GPU") else "cpu"
