"""`make setup` names what is missing on a machine, and what installs it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[1] / ".ci" / "check-prerequisites"
JDK_17 = 'if [ "$1" = -version ]; then echo \'openjdk version "17.0.15" 2025-04-15\' >&2; else echo jdk.compiler@17; fi'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that is the whole PATH: a shell, and nothing that the project needs."""
    for program in ("bash", "sed", "head", "grep"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    return tmp_path


def install(machine: Path, program: str, script: str) -> None:
    (machine / program).write_text(f"#!/bin/sh\n{script}\n")
    (machine / program).chmod(0o755)


def check(machine: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPT], env={"PATH": str(machine)}, capture_output=True, text=True, check=False, timeout=60)


def test_each_missing_tool_is_named(machine: Path) -> None:
    done = check(machine)
    assert done.returncode == 1
    python, java, maven = done.stderr.splitlines()
    assert "Python 3.11+ is missing" in python
    assert "apt-get install python3 python3-venv" in python
    assert "Java 17+ is missing" in java
    assert "apt-get install openjdk-17-jdk-headless" in java
    assert "Maven is missing" in maven
    assert "apt-get install maven" in maven


@pytest.mark.parametrize(
    ("java", "complaint"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "Java 17+ is missing (java is 11)"),
        ("echo 'java version \"1.8.0_292\"' >&2", "Java 17+ is missing (java is 8)"),
        ('if [ "$1" = -version ]; then echo \'openjdk version "21"\' >&2; else echo java.base@21; fi', "is a JRE only"),
    ],
    ids=["11", "8", "JRE"],
)
def test_unsuitable_java_is_refused(machine: Path, java: str, complaint: str) -> None:
    install(machine, "python3", f'exec "{sys.executable}" "$@"')
    install(machine, "mvn", "exit 0")
    install(machine, "java", java)
    done = check(machine)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_chosen_python_is_printed(machine: Path) -> None:
    install(machine, "python3", "exit 1")  # too old
    install(machine, "python3.11", f'exec "{sys.executable}" "$@"')
    install(machine, "mvn", "exit 0")
    install(machine, "java", JDK_17)
    done = check(machine)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "python3.11", "")
