"""stdout that takes no more, or that is not UTF-8; standard streams that are closed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CONFIG = """\
upstream: {bootstrap_servers: ["127.0.0.1:9"]}
listeners: [{bootstrap_port: 29092}]
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
FULL = Path("/dev/full")

pytestmark = pytest.mark.process


def weir(
    *arguments: str | bytes, environment: Mapping[str, str] = {}, stdout: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "gateway", *arguments]
    variables = {**os.environ, **environment}
    if stdout is None:
        return subprocess.run(command, capture_output=True, env=variables, timeout=60)
    with stdout.open("wb") as file:
        return subprocess.run(command, stdout=file, stderr=subprocess.PIPE, env=variables, timeout=60)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", ["check --config {config}", "explain --config {config} --json", "explain --config {config}", "--help"]
)
def test_full_stdout_is_one_message(arguments: str, unbuffered: str, config_file: Path) -> None:
    done = weir(*arguments.format(config=config_file).split(), environment={"PYTHONUNBUFFERED": unbuffered}, stdout=FULL)
    assert done.stderr.decode() == (
        "stdout can't be written: No space left on device — free space there, or send the output elsewhere\n"
    )
    assert done.returncode == 1


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_full_stdout_of_a_check_with_errors_is_one_message(config_file: Path) -> None:
    config_file.write_text(CONFIG + "quotas: {entities: [{user: a}]}\nworkers: x\n")
    done = weir("check", "--config", str(config_file), stdout=FULL)
    assert b"Traceback" not in done.stderr
    assert b"stdout can't be written" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("command", "broken", "code"),
    [("check", "", 0), ("check", "workers: x\n", 1), ("explain", "", 0), ("explain --json", "", 0)],
    ids=["check", "errors", "table", "json"],
)
def test_closed_pipe_keeps_exit_code(command: str, broken: str, code: int, unbuffered: str, config_file: Path) -> None:
    config_file.write_text(CONFIG + broken)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *command.split(), "--config", str(config_file)],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    finally:
        os.close(writer)
    assert done.stderr == (f"{config_file}: 1 error\n".encode() if broken else b"")
    assert done.returncode == code


@pytest.mark.parametrize("environment", [C_LOCALE, {"PYTHONIOENCODING": "latin-1"}], ids=["C", "latin-1"])
def test_message_reaches_a_terminal_that_is_not_utf_8(environment: Mapping[str, str], config_file: Path) -> None:
    config_file.write_text(CONFIG + "workers: x\n")
    done = weir("check", "--config", str(config_file), environment=environment)
    assert done.stdout.startswith(b"workers: ")
    assert b"\\u2014" in done.stdout
    assert done.stderr.decode("ascii") == f"{config_file}: 1 error\n"
    assert done.returncode == 1


def test_table_reaches_a_terminal_that_is_not_utf_8(config_file: Path) -> None:
    done = weir("explain", "--config", str(config_file), "--user", "дата", environment={"PYTHONIOENCODING": "latin-1"})
    assert b"\\u0434\\u0430\\u0442\\u0430" in done.stdout
    assert done.stderr == b""
    assert done.returncode == 0


def test_file_name_that_is_no_utf_8_is_printed(config_file: Path) -> None:
    name = bytes(config_file.parent) + b"/\xff.yaml"
    config_file.rename(os.fsdecode(name))
    done = weir("check", "--config", name)
    assert b"/\\udcff.yaml: valid: " in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_closed_standard_streams_are_filled(closed: str) -> None:
    program = (
        "import os; from gateway import standard_streams; standard_streams.fill();"
        " os.write(1, ' '.join(os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)).encode())"
    )
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    first, last = done.stdout.decode().split()
    assert (first == "/dev/null") == ("<" in closed)
    assert last == "/dev/null"
