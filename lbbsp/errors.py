"""The hierarchy of errors. Each says what was wanted, what came and what would work.

    LbbspError
    ├── ConfigError (also ValueError)   what the user asked for can't be met or is unknown
    │   ├── BoundsError                 global batch, bounds and granularity exclude one another
    │   └── UnsupportedError            a loop, loader or model that we can't serve exactly; says what works
    ├── MemoryLimitError                another rank has not the memory for a single sample
    ├── RefusedError                    the manager refused a hello
    ├── OutOfStepError                  ranks disagree on where they are: epoch, position, order of samples
    └── ServiceError                    the manager's process can't start or bind

Faults of our own service never raise into a training loop; only a wrong set-up and ranks out of step do.
"""


class LbbspError(Exception):
    """Base of all errors that lbbsp raises on purpose."""


class ConfigError(LbbspError, ValueError):
    """A request that can't be met or is unknown."""


class BoundsError(ConfigError):
    """Global batch, bounds and granularity exclude one another."""


class UnsupportedError(ConfigError):
    """A loop, loader or model that can't be served exactly."""


class RefusedError(LbbspError):
    """The manager refused a hello."""


class MemoryLimitError(LbbspError):
    """Another rank has not the memory for a single sample."""


class OutOfStepError(LbbspError):
    """Ranks disagree on epoch, position or order of samples."""


class ServiceError(LbbspError):
    """The manager's process can't start or bind."""
