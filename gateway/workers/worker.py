"""What a gateway knows of being one of several on its host."""

import asyncio
import atexit
import json
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.config.load import parse_kept_config, read_config_text
from gateway.config.model import WeirConfig
from gateway.features.ledger.config import LedgerConfig
from gateway.files.whole_file import replace_file

CUT = signal.SIGUSR1
"""Ends a worker at once. SIGTERM, which service managers send to every process beside the supervisor's, only ever drains it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes: its number, from 0, and the directory that it has in common with the supervisor alone."""

    number: int
    directory: Path

    @property
    def admin_socket(self) -> Path:
        """Where its own admin server listens, which only the supervisor asks."""
        return self.directory / f"worker-{self.number}"

    @property
    def config_file(self) -> Path:
        """The config in effect, which may not be what stands in the config file by now."""
        return self.directory / "config.json"

    def keep(self, config: WeirConfig) -> None:
        """Let it be in effect for workers that start from now on. Raises OSError, and then the one before is."""
        text = json.dumps(config.model_dump(mode="json", by_alias=True, exclude_unset=True))
        replace_file(self.config_file, [text], durable=False)

    def config(self, path: Path) -> WeirConfig:
        """What is in effect, of the config file at `path`. Raises ConfigError."""
        return parse_kept_config(read_config_text(self.config_file), source=str(path), directory=path.parent)

    @property
    def ports_directory(self) -> Path:
        """Where the workers agree on brokers' ports."""
        return self.directory / "ports"

    def when_alone(self, stop: Callable[[], None]) -> None:
        """Call `stop` once the supervisor is gone: it holds the other end of standard input, and writes nothing.

        Else workers of a supervisor that was killed would go on beside those of the next one, unseen.
        """
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(sys.stdin.fileno())
            atexit.register(shutil.rmtree, self.directory, ignore_errors=True)  # nobody else is left to do it
            stop()

        loop.add_reader(sys.stdin.fileno(), gone)


def ledger_of(config: LedgerConfig, worker: Worker | None) -> LedgerConfig:
    """The ledger's section for one of several: under a name of its own, so that no two processes write one file."""
    if worker is None:
        return config
    return config.model_copy(update={"gateway": f"{config.gateway or socket.gethostname()}-{worker.number}"})
