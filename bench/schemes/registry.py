"""All schemes by name. A new one is one file and one line here."""

from collections.abc import Callable
from functools import partial

from bench.schemes.asp import Asp
from bench.schemes.backup import Backup
from bench.schemes.balanced import Balanced
from bench.schemes.bsp import Bsp
from bench.schemes.claims import Claims
from bench.schemes.dbw import Dbw
from bench.schemes.dybw import Dybw
from bench.schemes.speculation import Speculation
from bench.schemes.ssp import Ssp
from bench.schemes.static import Static
from bench.schemes.world import Scheme, World
from lbbsp.predictors import PREDICTORS

SCHEMES: dict[str, Callable[[World], Scheme]] = {
    "bsp": Bsp,
    "static": Static,
    **{f"lbbsp-{name}": partial(Balanced, predictor=name) for name in PREDICTORS},
    "claims": Claims,
    "asp": Asp,
    "ssp-2": partial(Ssp, bound=2),
    "ssp-8": partial(Ssp, bound=8),
    "backup-1": partial(Backup, backups=1),
    "backup-2": partial(Backup, backups=2),
    "dbw": Dbw,
    "cb-dybw": Dybw,
    "cb-dybw-keep": partial(Dybw, late="keep"),
    "cb-full": partial(Dybw, full=True),
    "speculation": Speculation,
}
