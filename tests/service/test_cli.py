"""The command line: every command has help, errors are one line, only what is asked for is imported."""

import subprocess
import sys

import pytest

from lbbsp import __version__
from lbbsp.cli import COMMANDS


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lbbsp", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_names_every_command():
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    done = run(name, "--help")
    assert done.returncode == 0
    assert name in done.stdout


def test_version():
    assert run("--version").stdout.strip() == __version__


@pytest.mark.parametrize("words", [("nonsense",), ("manager", "--nonsense"), ("manager", "--log-level", "loud")])
def test_what_is_unknown_is_named_without_a_traceback(words):
    done = run(*words)
    assert done.returncode != 0
    assert words[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_predictor_is_named_at_start():
    done = run("manager", "--predictor", "oracle", "--bind", "tcp://127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "'oracle'" in done.stderr


def test_the_manager_imports_no_framework_and_no_plots():
    code = (
        "import sys; sys.argv = ['lbbsp', 'manager', '--help']\n"
        "from lbbsp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'tensorflow', 'matplotlib', 'pandas', 'statsmodels'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
