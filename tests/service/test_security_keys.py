"""Key files: for their owner alone, never overwritten, and errors that name the file and what would work."""

import os
import stat
import subprocess
import sys

import pytest

from lbbsp.errors import ConfigError
from lbbsp.service.keys import ANYBODY, Caller, make_client, make_server, read_clients, read_server
from lbbsp.worker.keyfile import client_curve, key_problem

BAD_NAMES = ["../up", "a/b", "", ".hidden", "x" * 200, "a\nb", "-rf"]


def lbbsp(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lbbsp", *map(str, words)],
        capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    make_server(tmp_path / "keys")
    return tmp_path / "keys"


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_secrets_are_for_their_owner_alone_whatever_the_umask(tmp_path, umask):
    if umask == 0o777 and os.geteuid() != 0:
        pytest.skip("only root works in a folder of mode 0")
    before = os.umask(umask)
    try:
        paths = [make_server(tmp_path / "keys"), make_client(tmp_path / "keys", "j", "j")]
    finally:
        os.umask(before)
    assert [mode(path) for path in paths] == [0o600, 0o600]
    assert mode(tmp_path / "keys") & 0o077 == 0


def test_nothing_is_overwritten(folder):
    secret = (folder / "server.secret").read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        make_server(folder)
    path = make_client(folder, "j", "j")
    with pytest.raises(ConfigError, match="listed already"):
        make_client(folder, "j", "j")
    (folder / "clients" / "j.toml").unlink()
    with pytest.raises(ConfigError, match="is there already"):
        make_client(folder, "j", "j")
    assert (folder / "server.secret").read_bytes() == secret
    assert client_curve(str(path)) is not None


def test_no_link_is_followed(folder, tmp_path):
    (folder / "j.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        make_client(folder, "j", "j")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_file_name_is_refused(folder, name):
    with pytest.raises(ConfigError, match="can't name a key file"):
        make_client(folder, "j", name)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o777])
def test_a_secret_that_others_may_read_is_refused_with_the_cure(folder, bits, monkeypatch):
    path = make_client(folder, "j", "j")
    for secret in (path, folder / "server.secret"):
        secret.chmod(bits)
    with pytest.raises(ConfigError, match="chmod 600"):
        client_curve(str(path))
    with pytest.raises(ConfigError, match="chmod 600"):
        read_server(folder)
    monkeypatch.setenv("LBBSP_KEYS", str(path))
    assert "chmod 600" in str(key_problem("tcp://127.0.0.1:5551"))
    assert key_problem(None) is None, "a job's own manager needs no key"


def test_a_list_that_others_may_write_is_refused(folder):
    make_client(folder, "j", "j")
    (folder / "clients" / "j.toml").chmod(0o666)
    with pytest.raises(ConfigError, match="let themselves in"):
        read_clients(folder)


@pytest.mark.parametrize("text", ["", "not toml", "job = 3", b"\xff\xfe".decode("latin-1"), 'job = "j"'])
def test_a_file_that_is_no_key_is_named(folder, text):
    path = folder / "bad.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"bad\.key"):
        client_curve(str(path))


@pytest.mark.parametrize("job", ["j", 'a "quoted" \\ name', "résumé*", "two\nlines"])
def test_any_job_name_comes_back_as_it_was(folder, job):
    make_client(folder, job, "odd")
    assert [caller.job for caller in read_clients(folder).values()] == [job]


@pytest.mark.parametrize(
    ("pattern", "job", "may"),
    [
        ("j", "j", True), ("j", "jj", False), ("j*", "jj", True), ("j?", "j1", True), ("j?", "j", False),
        ("*", "anything", True), ("a[x]", "a[x]", True), ("J", "j", False), ("j", "", False), ("j\n", "j", False),
    ],
)  # fmt: skip
def test_a_key_speaks_for_its_jobs(pattern, job, may):
    assert Caller(name="k", job=pattern).may(job) is may
    assert ANYBODY.may(job)


def test_the_command_makes_what_the_manager_and_the_job_need_and_shows_no_secret(tmp_path):
    folder = tmp_path / "keys"
    done = lbbsp("keys", folder, "--job", "resnet-*")
    assert done.returncode == 0, done.stderr
    secrets = [
        line.split('"')[1]
        for path in (folder / "server.secret", folder / "resnet-_.key")
        for line in path.read_text().splitlines()
        if "secret =" in line
    ]
    assert len(secrets) == 2
    assert not any(secret in done.stdout + done.stderr for secret in secrets)
    assert "LBBSP_KEYS" in done.stdout
    assert lbbsp("keys", folder, "--list").stdout == "resnet-_: jobs resnet-*\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--name", "x"], "--job JOB"), (["--job", ""], "--job is empty"), (["--job", "a", "--name", "b/c"], "b/c")],
)
def test_what_the_command_can_t_do_is_one_line(folder, words, said):
    done = lbbsp("keys", folder, *words)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_manager_without_readable_keys_does_not_start(folder):
    (folder / "server.secret").chmod(0o644)
    done = lbbsp("manager", "--keys", folder, "--bind", "tcp://127.0.0.1:0")
    assert done.returncode == 1
    assert "chmod 600" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_without_keys_names_the_command_that_makes_them(tmp_path):
    done = lbbsp("manager", "--keys", tmp_path, "--bind", "tcp://127.0.0.1:0")
    assert done.returncode == 1
    assert "lbbsp keys" in done.stderr
