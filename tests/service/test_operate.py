"""docs/operate.md is true: its commands work, its settings and metrics are those that there are, its bounds too."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness import until

from lbbsp.service import admission, config, figures, logs, rates, router

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "operate.md").read_text()
UNIT = (ROOT / "packaging" / "lbbsp-manager.service").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", DOC, re.S) for line in block.splitlines()]


def serve_and_end(words: list[str], folder: Path) -> None:
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, cwd=folder, stderr=out)
    until(lambda: b"listening on" in log.read_bytes() or process.poll() is not None, "listening")
    assert process.poll() is None, log.read_text()
    process.terminate()
    assert process.wait(20) == 0


def test_its_commands_work_in_their_order(tmp_path):
    toml = re.search(r"```toml\n(.*?)```", DOC, re.S).group(1)
    toml = toml.replace("/etc/lbbsp/", "").replace("/var/lib/lbbsp/", "").replace("5551", "0").replace("9551", "0")
    (tmp_path / "manager.toml").write_text(toml)
    managers = 0
    for command in (line for line in COMMANDS if line.startswith("lbbsp ")):
        words = [sys.executable, "-m", "lbbsp", *shlex.split(command.replace(":5551", ":0"))[1:]]
        if words[3] == "manager":
            managers += 1
            serve_and_end(words, tmp_path)
        else:
            subprocess.run(words, cwd=tmp_path, check=True, timeout=60, capture_output=True)
    assert managers == 2
    assert (tmp_path / "keys" / "resnet.key").exists()
    assert (tmp_path / "journal").exists()


def test_its_settings_are_settings():
    toml = re.search(r"```toml\n(.*?)```", DOC, re.S).group(1)
    assert tomllib.loads(toml).keys() <= config.FIELDS.keys()
    for name in re.findall(r"`(max_\w+)`", DOC):
        assert name in config.FIELDS


def test_its_bounds_are_the_bounds():
    usual = config.Config()
    for text in (
        f"| {router.MAX_FRAME_BYTES // 1024} KiB |",
        f"| handshake | {router.HANDSHAKE_MS // 1000} s |",
        f"{rates.BURST_S:.0f} s of it at once",
        f"{admission.MOST_OF_ONE} of one key",
        f"{logs.LINES_PER_S:.0f} a second, {logs.BURST_LINES:,.0f} at once",
        f"{figures.MOST_JOBS} jobs and {figures.MOST_RANKS:,} ranks",
        f"max_jobs = {usual.max_jobs}\nmax_ranks = {usual.max_ranks}\nmax_rate = {usual.max_rate}",
    ):
        assert text in DOC, text


def test_its_metrics_are_metrics():
    from lbbsp.service.metrics import Manager

    job = figures.JobFigures(
        "j", 1, 1, 1.0, 0.1, 1, 0.1, "ema", "balanced", 1, 0.1, 0, {"cause": 1},
        figures.RankFigures([1], [1.0], [1.0], [0.1], [False]),
    )  # fmt: skip
    shown = figures.Figures([job], 1, 0, {"stale": 1}, 0, [0] * 16, 0.0)
    families = list(Manager(lambda: shown).collect())
    names = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
    named = set(re.findall(r"`(lbbsp_\w+)", DOC))
    assert len(named) > 15
    assert named <= names, named - names


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="systemd is not here")
def test_the_unit_is_one(tmp_path):
    unit = tmp_path / "lbbsp-manager.service"
    unit.write_text(UNIT.replace("/usr/local/bin/lbbsp", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    assert "lbbsp-manager.service" not in done.stderr, done.stderr


def test_the_unit_names_the_file_that_the_doc_configures():
    assert "--config /etc/lbbsp/manager.toml" in UNIT
    assert "/etc/lbbsp/keys" in DOC
    assert "StateDirectory=lbbsp" in UNIT
    assert "/var/lib/lbbsp/journal" in DOC
