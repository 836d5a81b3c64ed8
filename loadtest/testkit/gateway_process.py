"""The gateway as its users run it, `weir serve` in a process of its own, for the load scenarios and the tests."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from loadtest.testkit.kafka import free_port, free_port_range, spawn, stop

HOST = "127.0.0.1"
BROKER_PORTS = 8
_LOOK_EVERY_SECONDS = 0.02
_ANSWER_SECONDS = 30


class GatewayError(RuntimeError):
    """The gateway did not get ready; the message holds the end of its log."""


class GatewayProcess:
    """A context manager: a gateway on free ports before `upstream` (`host:port,...`), started on entry, stopped on exit.

    `config` holds sections of the config file, which replace the ones that are made here; `listener` has further keys of the
    listener. It has started once its admin server answers `wait` with 200. `checkout` is the folder whose sources it runs, if
    not these.
    """

    def __init__(
        self,
        directory: Path,
        upstream: str,
        config: Mapping[str, Any] | None = None,
        listener: Mapping[str, Any] | None = None,
        wait: str = "/readyz",
        checkout: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        first = free_port_range(1 + BROKER_PORTS)
        admin_port = free_port()
        self._wait = wait
        self._checkout = checkout
        self.bootstrap_servers = f"{HOST}:{first}"
        self.ports = range(first, first + 1 + BROKER_PORTS)
        self.admin = f"http://{HOST}:{admin_port}"
        own = {
            "name": "clients",
            "host": HOST,
            "advertised_host": HOST,
            "bootstrap_port": first,
            "broker_ports": f"{first + 1}-{first + BROKER_PORTS}",
        }
        self.config: dict[str, Any] = {
            "upstream": {"bootstrap_servers": upstream.split(",")},
            "listeners": [{**own, **(listener or {})}],
            "admin": {"host": HOST, "port": admin_port},
            **(config or {}),
        }
        self.config_file = directory / "weir.yaml"
        self.log_file = directory / "weir.log"
        self.write_config(self.config)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the config file in one step, as editors and config management do."""
        new = self.config_file.with_suffix(".new")
        new.write_text(yaml.safe_dump(dict(config)))
        new.replace(self.config_file)

    @property
    def pid(self) -> int:
        """The process id, once it is started."""
        return self.process.pid

    def command(self) -> list[str]:
        """What starts it."""
        return [sys.executable, "-m", "gateway", "serve", "--config", str(self.config_file)]

    def launch(self) -> None:
        """Start it and return at once."""
        with self.log_file.open("a") as log:
            self.process = spawn(self.command(), stdout=log, stderr=log, cwd=self._checkout)

    def start(self, timeout: float = 60.0) -> None:
        """Start it and return once it says that it is ready. Raises GatewayError."""
        self.launch()
        self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Return once it says that it is ready. Raises GatewayError."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            if self.process.poll() is not None:
                raise GatewayError(f"weir ended with exit code {self.process.returncode}: {self.log()[-3000:]}")
            if time.monotonic() > deadline:
                self.process.kill()
                raise GatewayError(f"weir does not answer {self._wait} after {timeout:.0f} s: {self.log()[-3000:]}")
            time.sleep(_LOOK_EVERY_SECONDS)

    def stop(self) -> int:
        """SIGTERM: drain and end; killed after 15 s. The exit code."""
        return stop(self.process, timeout=15.0)

    def usage(self) -> list[dict[str, Any]]:
        """Return the rows of /api/quotas: each has the fields of `UsageRow`. Raises OSError where it does not answer."""
        rows: list[dict[str, Any]] = json.loads(self.get("/api/quotas"))["rows"]
        return rows

    def get(self, path: str) -> str:
        """Return an admin page's body. Raises OSError (urllib.error.URLError) where there is none."""
        with urllib.request.urlopen(self.admin + path, timeout=_ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def log(self) -> str:
        """Everything that it has logged so far."""
        return self.log_file.read_text(errors="replace")

    def sockets(self) -> set[str]:
        """The inodes of the sockets that the process holds open."""
        inodes = set()
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the folder was listed
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
        return inodes

    def resident_bytes(self) -> int:
        """The process's resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def _ready(self) -> bool:
        try:
            return bool(self.get(self._wait))
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:  # it does not listen yet, or has no time to answer
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
