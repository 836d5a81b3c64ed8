"""Runs Kafka's command line tools by class name: `run_tool("org.apache.kafka.tools.TopicCommand", ...)`."""

import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import IO, Self

from loadtest.testkit.kafka.jars import java
from loadtest.testkit.kafka.processes import spawn, stop

_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class ToolError(RuntimeError):
    """A tool failed or did not end in time. The message has its output."""


class Tool:
    """A running tool. Iterating over it yields its lines of stdout as they arrive; stderr is in `errors`."""

    def __init__(self, command: Sequence[str], stdin: int = subprocess.DEVNULL) -> None:
        self.command = command
        self.errors: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self.process = spawn(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_output, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self.process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self, stream: IO[str]) -> None:
        with stream:
            self.errors.extend(line.rstrip("\n") for line in stream)

    def __iter__(self) -> Iterator[str]:
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)

    def finish(self, timeout: float = 120.0) -> str:
        """Wait for the end and return the rest of stdout. Kills the tool after `timeout` s. Raises `ToolError`."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop(timeout=0)
            code = None
        for reader in self._readers:
            reader.join()
        output = "\n".join(self)
        if code != 0:
            end = f"exit code {code}" if code is not None else f"no end after {timeout:.0f} s"
            name = " ".join(self.command[self.command.index("-cp") + 2 :]) if "-cp" in self.command else self.command[0]
            raise ToolError(f"{name}: {end}\n{output}\n" + "\n".join(self.errors))
        return output

    def stop(self, timeout: float = 20.0) -> int:
        """Send SIGTERM, so that Kafka's tools close their clients and print their results; later SIGKILL. Returns the exit
        code.
        """
        code = stop(self.process, timeout)
        for reader in self._readers:
            reader.join()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop(timeout=5 if error is None else 0)


def start_tool(main: str | Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> Tool:
    """Start a tool by its class's full name, or a Java source file on Kafka's class path. Raises `JarsMissingError`."""
    return Tool([*java(*_QUICK_START, logging="tool"), str(main), *arguments], stdin)


def run_tool(main: str | Path, *arguments: str, timeout: float = 120.0) -> str:
    """Run a tool to its end and return its stdout. Raises `ToolError`, `JarsMissingError`."""
    return start_tool(main, *arguments).finish(timeout)
