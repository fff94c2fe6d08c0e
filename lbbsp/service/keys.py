"""The folder of keys that `lbbsp keys` makes and a manager reads.

    DIR/server.secret       the manager's own keys, mode 0600
    DIR/clients/NAME.toml   a client's public key and the jobs that it is for: who is listed may come in
    DIR/NAME.key            the client's secret file, mode 0600, to be moved to where the job runs

Knows nothing of sockets. Keys are Z85 text.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import zmq

from lbbsp.errors import ConfigError
from lbbsp.worker.keyfile import ClientKey, read_secret

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A manager's keys."""

    public: str
    secret: str


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A client as the manager knows it."""

    job: str
    public: str


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks: the owner of a key."""

    name: str = ""
    """Of the key; empty: without keys."""
    job: str = "*"

    def may(self, job: str) -> bool:
        """Whether this job is the caller's to see and to move."""
        return self.job in ("*", job) or fnmatchcase(job, self.job)


ANYBODY = Caller()


def make_server(folder: Path) -> Path:
    """Make the manager's keys.

    Raises:
        ConfigError: there are some already, or the folder can't be written.
    """
    public, secret = (key.decode() for key in zmq.curve_keypair())
    path = folder / "server.secret"
    _write(path, Pair(public=public, secret=secret), "the manager's keys: keep them secret")
    return path


def make_client(folder: Path, job: str, name: str) -> Path:
    """Make a client's keys for the jobs of this name or pattern, and list it.

    Raises:
        ConfigError: the name is taken or no file name, there is no server key, or the folder can't be written.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} can't name a key file: use letters, digits, . _ - (lbbsp keys DIR --name NAME)")
    server = read_server(folder)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    key = ClientKey(job=job, server_public=server.public, client_public=public, client_secret=secret)
    path, listed = folder / f"{name}.key", folder / "clients" / f"{name}.toml"
    if listed.exists():
        raise ConfigError(f"client {name!r} is listed already in {listed}: delete that to end it, or use another name")
    _write(path, key, f"key of client {name}: LBBSP_KEYS names this file where the job runs; keep it secret")
    _write(listed, Listed(job=job, public=public), f"client {name}: delete this file and its key is good no more")
    return path


def read_server(folder: Path) -> Pair:
    """The manager's keys.

    Raises:
        ConfigError: there are none, or others may read them.
    """
    path = folder / "server.secret"
    try:
        return msgspec.convert(read_secret(path), Pair)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no server's key ({error}): `lbbsp keys {folder}` makes one") from error


def read_clients(folder: Path) -> dict[str, Caller]:
    """Who is listed, by public key.

    Raises:
        ConfigError: a file there is none of a client, or may be written by others.
    """
    callers: dict[str, Caller] = {}
    for path in sorted((folder / "clients").glob("*.toml")):
        try:
            if path.stat().st_mode & 0o022:
                raise ConfigError(f"{path} may be written by others, who could let themselves in: chmod 644 {path}")
            listed = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Listed)
        except (OSError, ValueError) as error:
            raise (
                error if isinstance(error, ConfigError) else ConfigError(f"{path} lists no client: {error}")
            ) from error
        callers[listed.public] = Caller(name=path.stem, job=listed.job)
    return callers


def _write(path: Path, what: Pair | Listed | ClientKey, comment: str) -> None:
    """Write a file that only we may read, where there is none."""
    fields: Mapping[str, str] = msgspec.to_builtins(what)
    text = f"# lbbsp: {comment}\n" + "".join(f"{name} = {_quoted(value)}\n" for name, value in fields.items())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already and is not overwritten: move it away first") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _quoted(value: str) -> str:
    """As a TOML string; JSON's escapes are TOML's."""
    return msgspec.json.encode(value).decode()
