"""A client's key file, as `lbbsp keys` makes it: TOML, for its owner alone.

Which file: the argument, else LBBSP_KEYS, else none. Keys are Z85 text of 40 characters.
"""

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from lbbsp.errors import ConfigError
from lbbsp.worker.line import CurveKeys

OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ClientKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    job: str
    """Jobs that it is good for: a name, or a pattern with * and ?."""
    server_public: str
    client_public: str
    client_secret: str


def client_curve(argument: str | None = None) -> CurveKeys | None:
    """The keys of the file that the argument or LBBSP_KEYS names; None where neither does.

    Raises:
        ConfigError: the file can't be read, others may read it too, or it is no client's key.
    """
    path = argument or os.environ.get("LBBSP_KEYS")
    if not path:
        return None
    try:
        key = msgspec.convert(read_secret(Path(path)), ClientKey)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no client's key ({error}): give a NAME.key that `lbbsp keys` made") from error
    return CurveKeys(server_public=key.server_public, client_public=key.client_public, client_secret=key.client_secret)


def key_problem(manager: str | None) -> str | None:
    """Why this process's key can't be used with the manager that was given; None where it can, or none is needed."""
    try:
        _ = client_curve() if manager else None
    except ConfigError as error:
        return str(error)
    return None


def read_secret(path: Path) -> dict[str, Any]:
    """A TOML file that only its owner may read.

    Raises:
        ConfigError: it is not there, is no TOML, or its mode lets others in.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the key file {path}: {error}; `lbbsp keys` makes one") from error
    if mode & OTHERS:
        raise ConfigError(f"{path} is a secret that others may read (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no key file ({error}): `lbbsp keys` makes one") from error
