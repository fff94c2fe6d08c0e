"""Sizing rules behind one interface, by name: sizes and own times in, sizes out. A new rule is one file and a line.

`speed`, the rule of CPU clusters, is the manager's own: a predictor forecasts speeds (lbbsp.predictors).
"""

from lbbsp.core.rules.adaptive import Adaptive
from lbbsp.core.rules.base import Rule
from lbbsp.core.rules.leader_straggler import LeaderStraggler
from lbbsp.core.rules.linear import Linear
from lbbsp.core.rules.menu import Menu
from lbbsp.errors import ConfigError

__all__ = ["RULES", "Adaptive", "LeaderStraggler", "Linear", "Menu", "Rule", "choose", "make"]

SPEED = "speed"
"""The manager's own: a predictor forecasts speeds."""

RULES: dict[str, type[Adaptive] | type[LeaderStraggler] | type[Linear] | type[Menu]] = {
    "adaptive": Adaptive,
    "leader-straggler": LeaderStraggler,
    "linear": Linear,
    "menu": Menu,
}


def make(name: str, ranks: int, global_batch: int) -> Rule:
    """A rule by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in RULES:
        raise ConfigError(f"unknown rule {name!r}; known: auto, {SPEED}, {', '.join(sorted(RULES))}")
    return RULES[name](ranks, global_batch)


def choose(name: str, device_kinds: tuple[str, ...], ranks: int, global_batch: int) -> Rule | None:
    """The rule of a job; None where its speeds are forecast. "auto": adaptive where any rank has an accelerator.

    Raises:
        ConfigError: there is none of this name.
    """
    if name == "auto":
        name = "adaptive" if any(kind != "cpu" for kind in device_kinds) else SPEED
    return None if name == SPEED else make(name, ranks, global_batch)
