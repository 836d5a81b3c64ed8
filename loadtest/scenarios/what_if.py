"""`python -m loadtest.scenarios.what_if`: does `weir report --what-if` predict the throttling that enforcement then brings?

The same clients run twice against a real Kafka: first with `quotas.enforce: false`, then enforced. The report predicts the
throttled minutes from the ledger of the first run. The ledger of the second run has the measured ones.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import yaml

from loadtest.bench.report import machine
from loadtest.demo.clients import POLL_SECONDS, RECORD, Client, Role
from loadtest.testkit.gateway_process import GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, run_tool
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE = RESULTS / "what-if.json"
TOLERANCE = 0.05
RATE = 100_000
"""Bytes per second: the unit of the schedules, and the quota of each limited client."""

_WINDOW = {"samples": 6, "seconds": 1}
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True)
class Work:
    """A producer's work: in each minute of a cycle, a multiple of `RATE`. The producer sends later what had to wait."""

    name: str
    cycle: Sequence[float]
    limited: bool = True

    @property
    def topic(self) -> str:
        return f"of-{self.name}"

    def due(self, seconds: float) -> float:
        """The bytes that should be sent after so many seconds."""
        minute, rest = divmod(seconds, 60.0)
        whole = sum(self.cycle[number % len(self.cycle)] for number in range(int(minute))) * 60
        return RATE * (whole + rest * self.cycle[int(minute) % len(self.cycle)])


WORKS = (
    Work("steady", (0.5,)),
    Work("nearly", (0.95,)),
    Work("greedy", (1.6,)),
    Work("bursts", (2.0, 2.0, 0.0, 0.0, 0.0, 0.0)),
    Work("waves", (0.4, 1.4, 0.4)),
    Work("source", (1.8, 1.8, 0.0, 0.0, 0.0, 0.0), limited=False),
)
READER = Role("reader", "fetch", "of-source", RATE, None, "reads the records of source")


class Worker(Client):
    """A producer that follows its schedule from `began` (monotonic seconds)."""

    batching: ClassVar[Mapping[str, int]] = {
        "batch.size": 16_000, "linger.ms": 100, "queue.buffering.max.kbytes": 256, "message.timeout.ms": 0,
    }  # fmt: skip

    def __init__(self, work: Work, bootstrap_servers: str, began: float) -> None:
        super().__init__(Role(work.name, "produce", work.topic, RATE, None, ""), bootstrap_servers)
        self._work = work
        self._schedule_began = began

    def _ahead(self, sent: int) -> float:
        due = self._work.due(max(0.0, time.monotonic() - self._schedule_began))
        return POLL_SECONDS if sent + len(RECORD) > due else 0.0


def quotas(*, enforce: bool) -> Mapping[str, object]:
    """The section `quotas` of both runs."""
    entities = [{"client-id": work.name, "producer_byte_rate": RATE} for work in WORKS if work.limited]
    return {"enforce": enforce, "window": _WINDOW, "entities": [*entities, READER.entity()]}


def run_clients(directory: Path, minutes: int, *, enforce: bool) -> Path:
    """Run all clients for whole minutes of the clock; returns the ledger's path. Raises `RuntimeError` if a client fails."""
    ledger = directory / "ledger"
    config = {"quotas": quotas(enforce=enforce), "ledger": {"path": str(ledger), "gateway": "weir", "flush_seconds": 1}}
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster(directory / "kafka"))
        at = ["--bootstrap-server", kafka.bootstrap_servers]
        for work in WORKS:
            run_tool("org.apache.kafka.tools.TopicCommand", *at, "--create", "--topic", work.topic)
        gateway = stack.enter_context(GatewayProcess(directory / "weir", kafka.bootstrap_servers, config))
        wait = 60 - (time.time() + _SETTLE_SECONDS) % 60 + _SETTLE_SECONDS
        began = time.monotonic() + wait
        print(f"enforce {enforce}: begins in {wait:.0f} s, takes {minutes} minutes", flush=True)
        clients: list[Client] = [Worker(work, gateway.bootstrap_servers, began) for work in WORKS]
        clients.append(Client(READER, gateway.bootstrap_servers))
        for client in clients:
            client.start()
        time.sleep(max(0.0, began + minutes * 60 - _SETTLE_SECONDS - time.monotonic()))
        for client in clients:
            client.stop()
        for client in clients:
            client.join()
        failed = [f"{client.role.name}: {client.failure}" for client in clients if client.failure]
        if failed:
            raise RuntimeError("; ".join(failed))
    return ledger


def report(ledger: Path, out: Path, name: str, *options: str) -> Mapping[str, int]:
    """Run `weir report`. Returns the throttled minutes by client-id from the CSV files of the report `name`."""
    command = [sys.executable, "-m", "gateway", "report", "--events", str(ledger), "--out", str(out), "--quiet", *options]
    subprocess.run(command, check=True)
    (file,) = (out / "csv" / name).glob("*.csv")
    with file.open(newline="") as text:
        return {row["client_id"]: int(row["throttled_minutes"] or 0) for row in csv.DictReader(text)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.what_if", description=__doc__)
    parser.add_argument("--minutes", type=int, default=12, help="minutes of each of the two runs (default: 12)")
    minutes = parser.parse_args().minutes
    if minutes < 2:
        parser.error("--minutes must be at least 2")
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="what-if-", dir=RUN) as name:
        directory = Path(name)
        file = directory / "new.yaml"
        file.write_text(yaml.safe_dump({"quotas": dict(quotas(enforce=True))}))
        try:
            ledger = run_clients(directory / "before", minutes, enforce=False)
            predicted = report(ledger, directory / "report-before", "what_if", "--what-if", str(file))
            enforced = run_clients(directory / "after", minutes, enforce=True)
            measured = report(enforced, directory / "report-after", "top_throttled")
        except (JarsMissingError, NodeError, GatewayError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"what_if: {error}", file=sys.stderr)
            return 1
    rows = [(name, predicted.get(name, 0), measured.get(name, 0)) for name in (*(work.name for work in WORKS), READER.name)]
    for name, before, after in rows:
        print(f"{name:10} predicted {before:3} throttled minutes, measured {after:3}")
    of_all = sum(after for _, _, after in rows)
    off = sum(abs(before - after) for _, before, after in rows) / max(of_all, 1)
    print(f"{off:.1%} of {of_all} throttled minutes were not predicted, or predicted for another client")
    RESULT_FILE.write_text(
        json.dumps(
            {
                "machine": machine(),
                "minutes": minutes,
                "clients": [{"client": name, "predicted": before, "measured": after} for name, before, after in rows],
                "deviation": round(off, 4),
                "works": [asdict(work) for work in WORKS],
            },
            indent=1,
        )
        + "\n"
    )
    return 0 if off <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
