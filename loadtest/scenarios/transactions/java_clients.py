"""Java's clients of the workload, in one JVM."""

import json
from pathlib import Path
from typing import Final

from loadtest.scenarios.transactions.clients import PARTITIONS, Names
from loadtest.scenarios.transactions.history import Entry, entry_of
from loadtest.testkit.kafka import start_tool

_PROGRAM: Final = Path(__file__).with_name("TransactionClients.java")
TRANSACTIONAL: Final = ("appender-java-0", "appender-java-1", "copier-java-0")
"""The names of the transactional producers."""


class JavaClients:
    """The JVM, which starts at once. Raises `JarsMissingError`."""

    def __init__(self, servers: str, names: Names, seed: int) -> None:
        self._tool = start_tool(_PROGRAM, servers, names.run, str(seed), str(PARTITIONS), stdin=-1)

    def stop(self) -> None:
        """Let the clients finish what they do."""
        assert self._tool.process.stdin is not None
        self._tool.process.stdin.close()

    def entries(self, timeout: float) -> list[Entry]:
        """The history of all clients, once they have ended. Raises `ToolError`."""
        return [entry_of(json.loads(line)) for line in self._tool.finish(timeout).splitlines()]

    @property
    def errors(self) -> list[str]:
        return self._tool.errors
