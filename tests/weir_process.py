"""The gateway as its users run it, with what tests look at."""

import json
import signal
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.testkit.gateway_process import BROKER_PORTS, GatewayProcess
from loadtest.testkit.kafka import stop

__all__ = ["BROKER_PORTS", "Weir", "wait_until"]


def wait_until(condition: Callable[[], object], what: str, timeout: float = 60.0) -> Any:
    """Return the first true value of `condition`, asked again and again. Fails naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.02)
    return value


class Weir(GatewayProcess):
    """A gateway that has to end as it should: see `stop`."""

    def not_ready(self) -> str:
        """What /readyz says against sending clients here; empty once it says nothing."""
        try:
            self.get("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        return ""

    def stop(self) -> int:
        """SIGTERM; fails unless it drains, ends with exit code 0 and never had an exception that nobody expected."""
        code = stop(self.process, timeout=30.0)
        log = self.log()
        assert code == 0, f"weir ended with exit code {code}: {log[-4000:]}"
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
        return code

    def reload(self) -> None:
        """SIGHUP: read the config file again."""
        self.process.send_signal(signal.SIGHUP)

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log, but for one that is being written."""
        return [json.loads(line) for line in self.log().splitlines(keepends=True) if line.endswith("\n")]

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

    def client_sockets(self) -> int:
        """How many client connections it holds open as the kernel counts them, dead ones that it keeps included."""
        mine, ports = self.sockets(), {f"{port:04X}" for port in self.ports}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = "0A"
        return sum(row[1][-4:] in ports and row[3] != listening and row[9] in mine for row in rows)
