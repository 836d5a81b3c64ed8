"""The systemd unit, as systemd itself reads it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.commands import main
from loadtest.testkit.paths import CHECKOUT

UNIT = CHECKOUT / "helm" / "systemd" / "weir.service"
EXPOSURE_LIMIT = 2.5


def analyze(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on the PATH: apt-get install systemd")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=120)
    if "unrecognized option" in done.stderr:
        pytest.skip(f"this systemd-analyze is too old: {done.stderr.strip()}")
    return done


@pytest.mark.process
def test_unit_is_valid(tmp_path: Path) -> None:
    """Weir's path is that of an installation, so a program that exists here stands for it."""
    text = re.sub(r"/opt/weir/bin/weir", str(shutil.which("true")), UNIT.read_text())
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_unit_is_hardened() -> None:
    done = analyze("security", "--offline=true", "--no-pager", UNIT)
    found = re.search(r"Overall exposure level for weir.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < EXPOSURE_LIMIT


def test_config_of_the_unit_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(UNIT.with_name("weir.yaml"))]) == 0
    assert "warning" not in capsys.readouterr().out
