"""The gateway as its users run it, `weir serve` in a process of its own, for the load scenarios."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from loadtest.kafka import free_port, free_port_range, spawn, stop

HOST = "127.0.0.1"
_BROKER_PORTS = 4


class GatewayError(RuntimeError):
    """The gateway did not get ready; the message holds the end of its log."""


class GatewayProcess:
    """A context manager: a gateway on free ports before `upstream` (`host:port,...`), started on entry, stopped on exit.

    `entities` are rows of `quotas.entities`; `quotas` and `connections` are further keys of those sections.
    """

    def __init__(
        self,
        directory: Path,
        upstream: str,
        entities: Sequence[Mapping[str, Any]],
        *,
        quotas: Mapping[str, Any] | None = None,
        connections: Mapping[str, Any] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        first = free_port_range(1 + _BROKER_PORTS)
        self._admin_port = free_port()
        self.bootstrap_servers = f"{HOST}:{first}"
        self.ports = range(first, first + 1 + _BROKER_PORTS)
        self.admin = f"http://{HOST}:{self._admin_port}"
        self.log_file = directory / "weir.log"
        self._config_file = directory / "weir.yaml"
        config = {
            "upstream": {"bootstrap_servers": upstream.split(",")},
            "listeners": [{"name": "clients", "bootstrap_port": first, "broker_ports": f"{first + 1}-{first + _BROKER_PORTS}"}],
            "quotas": {"entities": [dict(entity) for entity in entities], **(quotas or {})},
            "connections": dict(connections or {}),
            "admin": {"port": self._admin_port},
        }
        self._config_file.write_text(yaml.safe_dump(config))

    @property
    def pid(self) -> int:
        """The process id, once it is started."""
        return self._process.pid

    def start(self, timeout: float = 30.0) -> None:
        """Start it and return once /readyz says yes. Raises GatewayError."""
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self._config_file)]
        with self.log_file.open("a") as log:
            self._process = spawn(command, stdout=log, stderr=log)
        deadline = time.monotonic() + timeout
        while not self._ready():
            if self._process.poll() is not None:
                raise GatewayError(f"weir ended with exit code {self._process.returncode}: {self._log_end()}")
            if time.monotonic() > deadline:
                self.stop()
                raise GatewayError(f"weir is not ready after {timeout:.0f} s: {self._log_end()}")
            time.sleep(0.05)

    def stop(self) -> int:
        """SIGTERM: drain and end; killed after 15 s. The exit code."""
        return stop(self._process, timeout=15.0)

    def usage(self) -> list[dict[str, Any]]:
        """Return the rows of /api/quotas: each has the fields of `UsageRow`. Raises OSError where it does not answer."""
        rows: list[dict[str, Any]] = json.loads(self.get("/api/quotas"))["rows"]
        return rows

    def get(self, path: str) -> str:
        """Return an admin page's body. Raises OSError (urllib.error.URLError) where there is none."""
        with urllib.request.urlopen(self.admin + path, timeout=5) as answer:
            return str(answer.read().decode())

    def _ready(self) -> bool:
        try:
            return bool(self.get("/readyz"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def _log_end(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
