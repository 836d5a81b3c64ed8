"""Runs `weir serve` in its own process, for load scenarios and tests."""

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import yaml

from loadtest.testkit.compiled_build import compiled_build, environment
from loadtest.testkit.kafka import free_port, free_port_range, spawn, stop

HOST = "127.0.0.1"
BROKER_PORTS = 8
_LOOK_EVERY_SECONDS = 0.02
_ANSWER_SECONDS = 30
_APPLY_SECONDS = 60.0


class GatewayError(RuntimeError):
    """The gateway did not become ready. The message has the end of its log."""


class GatewayProcess:
    """A context manager that runs a gateway on free ports in front of `upstream` (`host:port,...`).

    `config` replaces whole sections of the generated config file; `listener` adds keys to the listener. The gateway is ready
    once its admin server answers `wait` with 200. `packages` is the folder of the packages `gateway` and
    `protocol` to run; default: those that this process imports.
    """

    def __init__(
        self,
        directory: Path,
        upstream: str,
        config: Mapping[str, Any] | None = None,
        listener: Mapping[str, Any] | None = None,
        wait: str = "/readyz",
        packages: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        first = free_port_range(1 + BROKER_PORTS)
        admin_port = free_port()
        self._wait = wait
        self._packages = packages
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
        """Replace the config file atomically."""
        new = self.config_file.with_suffix(".new")
        new.write_text(yaml.safe_dump(dict(config)))
        new.replace(self.config_file)

    def apply(self, **sections: Any) -> None:  # noqa: ANN401 -- any YAML
        """Replace whole sections of the config, and wait until the gateway has applied them. Raises `GatewayError`."""
        before, present = json.loads(self.get("/api/config"))["version"], self.config_file.read_text()
        self.write_config(self.config | sections)
        if self.config_file.read_text() == present:
            return  # an unchanged config has no new version
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + _APPLY_SECONDS
        while json.loads(self.get("/api/config"))["version"] == before:
            if time.monotonic() > deadline:
                raise GatewayError(f"weir has not applied its config after {_APPLY_SECONDS:.0f} s: {self.log()[-3000:]}")
            time.sleep(_LOOK_EVERY_SECONDS)

    @property
    def pid(self) -> int:
        return self.process.pid

    def command(self) -> list[str]:
        return [sys.executable, "-m", "gateway", "serve", "--config", str(self.config_file)]

    def launch(self) -> None:
        """Start the gateway without waiting for it."""
        environ = None if self._packages is None else environment(self._packages)
        with self.log_file.open("a") as log:
            self.process = spawn(self.command(), stdout=log, stderr=log, env=environ)

    def start(self, timeout: float = 60.0) -> None:
        """Start the gateway and wait until it is ready. Raises `GatewayError`."""
        self.launch()
        self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Wait until the gateway is ready. Raises `GatewayError`."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            if self.process.poll() is not None:
                raise GatewayError(f"weir ended with exit code {self.process.returncode}: {self.log()[-3000:]}")
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()  # otherwise Python warns of it, amid another test
                raise GatewayError(f"weir does not answer {self._wait} after {timeout:.0f} s: {self.log()[-3000:]}")
            time.sleep(_LOOK_EVERY_SECONDS)

    def stop(self) -> int:
        """Send SIGTERM, kill the gateway after 15 s, and return the exit code."""
        return stop(self.process, timeout=15.0)

    def usage(self) -> list[dict[str, Any]]:
        """The rows of /api/quotas, with the fields of `UsageRow`. Raises `OSError` if the gateway does not answer."""
        rows: list[dict[str, Any]] = json.loads(self.get("/api/quotas"))["rows"]
        return rows

    def get(self, path: str) -> str:
        """An admin page's body. Raises `OSError` (urllib.error.URLError) on failure."""
        with urllib.request.urlopen(self.admin + path, timeout=_ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def sockets(self) -> set[str]:
        """The inodes of the process's open sockets."""
        inodes = set()
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the folder was listed
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
        return inodes

    def resident_bytes(self) -> int:
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


class CompiledGateway(GatewayProcess):
    """A gateway whose figures are measured: it runs the compiled build, which is made first if a source has changed.

    Raises BuildError if that fails.
    """

    def __init__(
        self,
        directory: Path,
        upstream: str,
        config: Mapping[str, Any],
        listener: Mapping[str, Any] | None = None,
        wait: str = "/readyz",
    ) -> None:
        super().__init__(directory, upstream, config, listener, wait, compiled_build())


class MakeGateway(Protocol):
    """A class above. A plain `Callable[..., GatewayProcess]` would let a caller pass arguments that one of them lacks."""

    def __call__(
        self, directory: Path, upstream: str, config: Mapping[str, Any], listener: Mapping[str, Any] | None = None
    ) -> GatewayProcess: ...
