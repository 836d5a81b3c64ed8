"""The log's thread, on a pipe."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway import log_writer
from gateway.log_writer import MAX_LINES, LogWriter
from tests.gateway.conftest import full_disk


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("weir.test", logging.INFO, "", 0, text, (), None)


def read_lines(reading: int, number: int) -> list[str]:
    """Return so many lines, as soon as they are written."""
    data = b""
    while data.count(b"\n") < number:
        data += os.read(reading, 1 << 20)
    return data.decode().splitlines()


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    with closing(LogWriter(pipe[1])) as writer:
        for number in range(100):
            writer.emit(record(f"line {number}"))
        assert read_lines(pipe[0], 100) == [f"line {number}" for number in range(100)]


def test_reader_that_stands_still_costs_lines_and_no_time(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 0.0)
    with closing(LogWriter(pipe[1])) as writer:
        writer.emit(record("x" * 100_000))  # more than the pipe takes: the thread waits
        waiting = os.read(pipe[0], 1)
        for number in range(MAX_LINES + 10):
            writer.emit(record(str(number)))
        lines = read_lines(pipe[0], 1 + MAX_LINES)
        assert (waiting + lines[0].encode(), lines[-1]) == (b"x" * 100_000, str(MAX_LINES - 1))
        writer.emit(record("read again"))
        lost, again = read_lines(pipe[0], 2)
        assert lost.startswith("10 log lines are lost, because nobody read stderr")
        assert again == "read again"


def test_reader_that_has_gone_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with closing(LogWriter(writing)) as writer:
        writer.emit(record("lost"))
        writer.flush()
        writer.emit(record("lost too"))
    os.close(writing)


def test_full_disk_costs_whole_lines_and_is_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file, closing(LogWriter(file.fileno())) as writer:
        with full_disk(1_000):
            for letter in "abc":
                writer.emit(record(letter * 600))
                writer.flush()
        writer.emit(record("room again"))
        writer.flush()
    whole, torn, lost, last = (tmp_path / "log").read_text().splitlines()
    assert (whole, torn, last) == ("a" * 600, "b" * 399, "room again")
    assert lost.startswith("2 log lines are lost, because stderr took no more (File too large)")


def test_full_pipe_that_does_not_block_loses_nothing(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    with closing(LogWriter(pipe[1])) as writer:
        for number in range(20):
            writer.emit(record(str(number) * 50_000))
        assert read_lines(pipe[0], 20) == [str(number) * 50_000 for number in range(20)]


@pytest.mark.process
def test_process_writes_its_last_lines() -> None:
    program = (
        "import logging; from gateway.log import configure_logging; configure_logging('text');"
        " [logging.getLogger('weir').info('line %d', number) for number in range(1000)]"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True)
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [str(number) for number in range(1000)]


@pytest.mark.process
def test_processes_with_one_pipe_tear_no_long_line(pipe: tuple[int, int]) -> None:
    program = (
        "import logging; from gateway import log_writer; from gateway.log import configure_logging;"
        " log_writer.FLUSH_SECONDS = 60; configure_logging('text');"
        " [logging.getLogger('weir').info('%s', {letter!r} * 100_000) for _ in range(20)]"
    )
    commands = [[sys.executable, "-c", program.format(letter=letter)] for letter in "abc"]
    processes = [subprocess.Popen(command, stderr=pipe[1]) for command in commands]
    lines = read_lines(pipe[0], 60)
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert sorted(line.split()[-1] for line in lines) == sorted([letter * 100_000 for letter in "abc"] * 20)


@pytest.mark.process
def test_process_ends_without_a_reader() -> None:
    program = (
        "import logging; from gateway.log import configure_logging; configure_logging('text');"
        " [logging.getLogger('weir').info('line %d', number) for number in range(10000)]; print('logged')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.wait(60) == 0, "nobody reads stderr"
        assert process.stdout is not None
        assert process.stdout.read() == b"logged\n"
