"""Samples of the gateway at fixed intervals, in a file with one line of JSON each."""

import json
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from loadtest.scenarios.soak.process_samples import ProcessSample, sample
from loadtest.testkit.gateway_process import GatewayProcess

SAMPLE_SECONDS: Final = 10.0

COUNTERS: Final = (
    "weir_topic_bytes", "weir_topic_throttled_bytes", "weir_quota_bytes", "weir_quota_partitions", "weir_throttled_requests",
    "weir_requests", "weir_connections_accepted", "weir_connections", "weir_protocol_errors", "weir_tls_reloads",
    "weir_tls_handshake_failures", "weir_config_reloads", "weir_task_restarts", "weir_worker_restarts", "weir_ledger_dropped",
    "weir_ledger_topic_dropped", "weir_worker_connections", "weir_muted_connections", "weir_connections_rejected",
    "weir_shadow_throttled_requests", "weir_volume_source_errors", "weir_group_throttled_requests", "weir_small_quotas",
)  # fmt: skip
"""The families of /metrics that are kept."""

Counters = dict[str, float]
"""Values by `name{label=value,...}`."""


@dataclass(frozen=True)
class Observed:
    """One sample. `at` is monotonic time, read before the scrape. `counters` is empty if the gateway did not answer."""

    at: float
    processes: list[ProcessSample]
    counters: Counters

    @classmethod
    def of(cls, line: dict[str, Any]) -> "Observed":
        return cls(line["at"], [ProcessSample(**each) for each in line["processes"]], line["counters"])


def read_counters(page: str) -> Counters:
    """The `COUNTERS` of a page in Prometheus's text format."""
    found = {}
    for family in text_string_to_metric_families(page):
        if family.name in COUNTERS:
            for one in family.samples:
                if not one.name.endswith("_created"):
                    found[series(one.name, **one.labels)] = one.value
    return found


def series(name: str, **labels: str) -> str:
    """The key of a sample in `Counters`."""
    return f"{name}{{{','.join(f'{key}={value}' for key, value in sorted(labels.items()) if value)}}}"


def read_observed(path: Path) -> list[Observed]:
    return [Observed.of(json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}")]


class Observer:
    """A thread that appends a sample to `path` every `SAMPLE_SECONDS`."""

    def __init__(self, gateway: GatewayProcess, path: Path, clients: Collection[int], brokers: Collection[int]) -> None:
        """`clients` are the ports of the listeners, `brokers` those of the brokers."""
        self._gateway = gateway
        self._path = path
        self._clients = clients
        self._brokers = brokers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.last: Observed | None = None

    def start(self) -> None:
        self._thread.start()

    def look(self) -> Observed:
        """Take a sample now, and append it to the file."""
        now, counters = time.monotonic(), Counters()
        roles = {"supervisor": self._gateway.pid}
        with suppress(OSError):
            states = json.loads(self._gateway.get("/api/workers"))["workers"]
            roles |= {f"worker {number}": state["pid"] for number, state in enumerate(states) if state["pid"]}
            counters = read_counters(self._gateway.get("/metrics"))
        processes = []
        for role, pid in roles.items():
            with suppress(OSError):  # killed a moment ago
                processes.append(sample(role, pid, self._clients, self._brokers))
        seen = Observed(now, processes, counters)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(seen)) + "\n")
        return seen

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            with suppress(OSError, HTTPException, ValueError, KeyError):  # amid a kill; the next sample follows soon
                self.last = self.look()
            due += SAMPLE_SECONDS
