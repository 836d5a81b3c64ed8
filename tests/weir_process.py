"""The gateway as its users run it: a process of its own with a config file."""

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from loadtest.kafka import free_port, free_port_range, spawn, stop

BROKER_PORTS = 8


def wait_until(condition: Callable[[], object], what: str, timeout: float = 30.0) -> Any:
    """Return the first true value of `condition`, asked again and again. Fails naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.02)
    return value


class Weir:
    """`weir serve` in front of a cluster, on free ports. `config` is merged over what every test needs, and `listener` over
    the keys of its listener."""

    def __init__(
        self,
        directory: Path,
        bootstrap_servers: str,
        config: Mapping[str, Any] | None = None,
        listener: Mapping[str, Any] | None = None,
        wait: str = "/readyz",
    ) -> None:
        self._wait = wait
        directory.mkdir(parents=True, exist_ok=True)
        first = free_port_range(1 + BROKER_PORTS)
        self.bootstrap_servers = f"127.0.0.1:{first}"
        self.ports = range(first, first + 1 + BROKER_PORTS)
        self.admin = f"http://127.0.0.1:{(admin_port := free_port())}"
        self.config: dict[str, Any] = {
            "upstream": {"bootstrap_servers": bootstrap_servers.split(",")},
            "listeners": [
                {
                    "name": "clients",
                    "host": "127.0.0.1",
                    "advertised_host": "127.0.0.1",
                    "bootstrap_port": first,
                    "broker_ports": f"{first + 1}-{first + BROKER_PORTS}",
                    **(listener or {}),
                }
            ],
            "admin": {"host": "127.0.0.1", "port": admin_port},
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

    def start(self, timeout: float = 30.0) -> None:
        """Start it and return once the page that is waited for answers, /readyz as a rule."""
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self.config_file)]
        with self.log_file.open("a") as log:
            self.process = spawn(command, stdout=log, stderr=log)
        wait_until(self._ready, f"{self._wait} of {self.admin} answers 200", timeout)

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"weir ended with exit code {self.process.returncode}: {self.log()}"
        try:
            return self.get(self._wait) is not None
        except (urllib.error.URLError, ConnectionError):
            return False

    def stop(self) -> None:
        """SIGTERM; fails unless it drains, ends with exit code 0 and never had an exception that nobody expected."""
        code = stop(self.process, timeout=30.0)
        log = self.log()
        assert code == 0, f"weir ended with exit code {code}: {log[-4000:]}"
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def reload(self) -> None:
        """SIGHUP: read the config file again."""
        self.process.send_signal(signal.SIGHUP)

    def log(self) -> str:
        """Everything that it has logged so far."""
        return self.log_file.read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log().splitlines()]

    def get(self, path: str) -> str:
        """The body of an admin page. Raises urllib.error.URLError where there is none."""
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that carry these labels; 0 where there is none."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def label_values(self, name: str, label: str) -> set[str]:
        """The values of a label among the samples of a metric that are above 0."""
        return {
            sample.labels[label]
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name and sample.value > 0
        }

    def sockets(self) -> set[str]:
        """The inodes of the sockets that the process holds open."""
        inodes = set()
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the folder was listed
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
        return inodes

    def client_sockets(self) -> int:
        """How many client connections it holds open as the kernel counts them, dead ones that it keeps included."""
        mine, ports = self.sockets(), {f"{port:04X}" for port in self.ports}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = "0A"
        return sum(row[1][-4:] in ports and row[3] != listening and row[9] in mine for row in rows)

    def resident_bytes(self) -> int:
        """The process's resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
