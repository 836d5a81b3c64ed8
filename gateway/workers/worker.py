"""The identity of one of several workers, and the directory that it shares with the supervisor."""

import asyncio
import atexit
import json
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from gateway.config.effective import ConfigHistory
from gateway.config.load import kept_config, parse_kept_config, read_config_text
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError, Problem
from gateway.features.ledger.config import LedgerConfig
from gateway.files.whole_file import create_file, real_path

CUT = signal.SIGUSR1
"""Ends a worker at once. SIGTERM always drains, because both service managers and the supervisor send it to workers."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes: its number, from 0, and the directory of the supervisor and its workers.

    `claims` is the descriptor of the file in which workers claim brokers' ports.
    """

    number: int
    directory: Path
    claims: int

    @property
    def admin_socket(self) -> Path:
        """The socket of the worker's admin server, which only the supervisor uses."""
        return self.directory / f"worker-{self.number}"

    @property
    def config_file(self) -> Path:
        """The config in effect, which may differ from the config file."""
        return self.directory / "config.json"

    def keep(self, config: WeirConfig, history: ConfigHistory) -> None:
        """Save the config for workers that start later. Raises OSError; the earlier config is kept then.

        The file has the secrets of the config. Links are replaced, not followed.
        """
        new = self.config_file.with_suffix(".new")
        new.unlink(missing_ok=True)
        create_file(new, [json.dumps(asdict(history)), "\n", kept_config(config)], mode=0o600, durable=False)
        new.replace(self.config_file)

    def kept(self, path: Path) -> tuple[WeirConfig, ConfigHistory]:
        """The config in effect, with file names relative to `path`. Raises ConfigError."""
        history, _, config = read_config_text(self.config_file, most=inf).partition("\n")
        try:
            return parse_kept_config(config, source=str(path), directory=path.parent), ConfigHistory(**json.loads(history))
        except (ValueError, KeyError, TypeError, AttributeError):
            message, remedy = (
                "a supervisor of another version has saved it",
                "restart Weir: its files were replaced while it ran",
            )
            raise ConfigError(str(self.config_file), [Problem("config in effect", message, remedy)]) from None

    @property
    def supervised(self) -> bool:
        """False once the supervisor has ended: then the next one's workers may write the state files.

        The supervisor holds the other end of standard input, and writes nothing.
        """
        return not select.select([sys.stdin], [], [], 0.0)[0]

    def when_alone(self, stop: Callable[[], None]) -> None:
        """Call `stop` when the supervisor has ended.

        Otherwise the workers of a killed supervisor would run beside those of the next one, and nobody would know.
        """
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(sys.stdin.fileno())
            # No other process is left to do it. The directory's path may be that of a descriptor.
            atexit.register(lambda: shutil.rmtree(real_path(self.directory), ignore_errors=True))
            stop()

        loop.add_reader(sys.stdin.fileno(), gone)


def gateway_name(ledger: LedgerConfig | None, worker: Worker | None) -> str:
    """The name in events and in the ledger's files. A worker's name has its number, so that no two processes write one file."""
    host = socket.gethostname()
    if ledger is None:
        return host
    name = ledger.gateway or host
    return name if worker is None else f"{name}-{worker.number}"
