"""A gateway process, with the figures that tests check."""

import json
import signal
import socket
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.testkit.gateway_process import GatewayProcess
from loadtest.testkit.kafka import stop


def wait_until(condition: Callable[[], object], what: str, timeout: float = 60.0) -> Any:
    """Evaluate `condition` until it is true and return its value. Fails naming `what` after `timeout` seconds."""
    deadline, pause = time.monotonic() + timeout, 0.01
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)  # a page that is asked for every 10 ms would cost more than the test
    return value


def closes(client: socket.socket) -> bool:
    """Return True if the gateway closes the connection without sending bytes."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


class Weir(GatewayProcess):
    """A gateway whose exit is checked: see `stop`."""

    def not_ready(self) -> str:
        """Return the reason that /readyz gives, or an empty string if the gateway is ready."""
        try:
            self.get("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        return ""

    def stop(self) -> int:
        """Send SIGTERM. Fails unless the exit code is 0 and the log has no traceback."""
        code = stop(self.process, timeout=30.0)
        log = self.log()
        assert code == 0, f"weir ended with exit code {code}: {log[-4000:]}"
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
        return code

    def reload(self) -> None:
        """Send SIGHUP, so that the gateway reads its config file again."""
        self.process.send_signal(signal.SIGHUP)

    def api(self, name: str) -> Any:
        """Return the JSON of an admin page below /api/."""
        return json.loads(self.get(f"/api/{name}"))

    def workers(self) -> list[dict[str, Any]]:
        """Return the rows of /api/workers."""
        found: list[dict[str, Any]] = self.api("workers")["workers"]
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time (user and system) that the process has used so far."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def wait_for_volumes(self, state: str) -> None:
        """Wait until the volumes are in `state`: OPEN, THROTTLE or PAUSE."""
        wait_until(lambda: self.api("volumes")["state"] == state, f"volumes in state {state}")

    def events(self) -> list[dict[str, Any]]:
        """Return the complete lines of the log."""
        return [json.loads(line) for line in self.log().splitlines(keepends=True) if line.endswith("\n")]

    def logged(self, words: str = "", **fields: str) -> list[dict[str, Any]]:
        """Return the events with these words and fields, and wait for the first: a thread of the gateway writes the log."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events() if words in event["msg"] and fields.items() <= event.items()]

        return wait_until(found, f"a line of the log with {words!r} {fields or ''}")

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a metric with these labels, or 0."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def label_values(self, name: str, label: str) -> set[str]:
        """Return the values of a label in the samples of a metric that are above 0."""
        return {
            sample.labels[label]
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name and sample.value > 0
        }

    def client_sockets(self) -> int:
        """Return the number of client connections by the kernel's count, half-closed ones included."""
        mine, ports = self.sockets(), {f"{port:04X}" for port in self.ports}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = "0A"
        return sum(row[1][-4:] in ports and row[3] != listening and row[9] in mine for row in rows)
