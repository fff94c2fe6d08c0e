"""The user's choice of predictor and sizing rule for a job's own manager; an outside manager keeps its own.

None leaves it to LBBSP_MANAGER_PREDICTOR and LBBSP_MANAGER_RULE, else to the manager's defaults.
"""

import logging

from lbbsp.errors import ConfigError

log = logging.getLogger(__name__)


def choice_problem(predictor: str | None, rule: str | None) -> str | None:
    """Why these can't be had; None where they can."""
    if predictor is None and rule is None:
        return None
    from lbbsp.core.rules import choose
    from lbbsp.predictors import make

    try:
        if predictor is not None:
            make(predictor, 1)
        if rule is not None:
            choose(rule, (), 1, 1)
    except ConfigError as error:
        return str(error)
    return None


def choice_options(predictor: str | None, rule: str | None) -> list[str]:
    """The same as options of `lbbsp manager`."""
    given = (("--predictor", predictor), ("--rule", rule))
    return [word for name, value in given if value is not None for word in (name, value)]


def tell_unheard(predictor: str | None, rule: str | None, manager: str) -> None:
    """Say that a manager from outside follows its own choice."""
    if unheard := choice_options(predictor, rule):
        log.warning(
            "%s has no effect: the manager at %s sizes by its own choice; start it with these options",
            " ".join(unheard),
            manager,
        )
