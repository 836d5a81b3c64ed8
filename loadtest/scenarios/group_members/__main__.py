"""`python -m loadtest.scenarios.group_members`: consumer groups under `request_rate: 2`, for two minutes.

Each library has a group in the classic protocol and one in that of KIP-848, with several members and one client-id. The result
counts the rebalances after the groups have settled: a group that loses a member rebalances. The franz-go client is built from
`franz_go/` if Go and its module proxy are available.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Producer

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, franz_go, run_tool, spawn, stop
from loadtest.testkit.kafka.jars import java
from loadtest.testkit.paths import RUN

_HERE = Path(__file__).parent
_TOPIC, _PARTITIONS = "members", 8
_RATE = 2
_RECORDS_PER_SECOND = 20
_SETTLED_SECONDS = 15.0
_PATIENCE_SECONDS = 240.0

LIBRARIES = ("java", "librdkafka", "franz-go")
PROTOCOLS = ("classic", "consumer")


class Group:
    """The process of one group's members, and its output so far."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.rebalances = self.lost = self.records = 0
        self.last_rebalance = time.monotonic()
        self._process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, number = line.strip().partition(" ")
            if word == "records":
                self.records += int(number)
            else:
                self.rebalances += 1
                self.lost += word == "lost"
                self.last_rebalance = time.monotonic()

    @property
    def settled(self) -> bool:
        """True if every member has had its partitions for a while. Raises `RuntimeError` if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the members of {self.name} have ended with exit code {self._process.returncode}")
        return self.rebalances > 0 and time.monotonic() - self.last_rebalance > _SETTLED_SECONDS

    def close(self) -> None:
        stop(self._process)
        self._reader.join()


def program(library: str, directory: Path) -> list[str] | None:
    """The command that runs a library's members; None if it cannot run here."""
    if library == "java":
        return [*java(logging="tool"), str(_HERE / "GroupMember.java")]
    if library == "librdkafka":
        return [sys.executable, "-m", "loadtest.scenarios.group_members.librdkafka"]
    return franz_go(_HERE / "franz_go", directory / "members")


@contextmanager
def records(bootstrap_servers: str) -> Iterator[None]:
    """Produce records, directly at the brokers, while the block runs."""
    producer, over = Producer({"bootstrap.servers": bootstrap_servers}), threading.Event()

    def produce() -> None:
        while not over.wait(1 / _RECORDS_PER_SECOND):
            producer.produce(_TOPIC, bytes(100))
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        producer.flush(10)


def run(groups: list[Group], gateway: GatewayProcess, seconds: float) -> dict[str, dict[str, float]]:
    """Wait until the groups have settled, then count their rebalances for that time. Raises `RuntimeError`."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(group.settled for group in groups):
        if time.monotonic() > deadline:
            waiting = ", ".join(group.name for group in groups if not group.settled)
            raise RuntimeError(f"these groups do not settle: {waiting}")
        time.sleep(0.5)
    before = {group.name: (group.rebalances, group.lost, group.records) for group in groups}
    longest = dict.fromkeys(before, 0.0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for row in gateway.usage():
            if row["client_id"] in longest and row["kind"] == "request_rate":
                longest[row["client_id"]] = max(longest[row["client_id"]], row["throttle_left"])
        time.sleep(0.5)
    requests = {row["client_id"]: row for row in gateway.usage() if row["kind"] == "request_rate"}
    found: dict[str, dict[str, float]] = {}
    for group in groups:
        rebalances, lost, records_before = before[group.name]
        found[group.name] = {
            "rebalances": group.rebalances - rebalances,
            "lost": group.lost - lost,
            "records": group.records - records_before,
            "throttled_requests": requests[group.name]["throttled_total"],
            "longest_debt_seconds": round(longest[group.name], 1),
        }
    return found


def main() -> int:
    """Measure and print JSON; returns 1 if a group rebalanced."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.group_members", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="time in which rebalances count (default: 120)")
    parser.add_argument("--members", type=int, default=6, help="members of each group (default: 6)")
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--protocols", nargs="*", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument("--interpreted", action="store_true", help="run the sources, without the compiled build")
    options = parser.parse_args()
    RUN.mkdir(exist_ok=True)
    names = [f"{library}-{protocol}" for library in options.libraries for protocol in options.protocols]
    config = {"quotas": {"entities": [{"client-id": name, "request_rate": _RATE} for name in names]}}
    gateway_class = GatewayProcess if options.interpreted else CompiledGateway
    try:
        with (
            tempfile.TemporaryDirectory(prefix="group-members-", dir=RUN) as folder,
            KafkaCluster(Path(folder) / "kafka") as kafka,
            gateway_class(Path(folder) / "weir", kafka.bootstrap_servers, config) as gateway,
            ExitStack() as running,
        ):
            arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", _TOPIC]
            run_tool("org.apache.kafka.tools.TopicCommand", *arguments, "--partitions", str(_PARTITIONS))
            running.enter_context(records(kafka.bootstrap_servers))
            groups = []
            for library in options.libraries:
                command = program(library, Path(folder))
                if command is None:
                    continue
                for protocol in options.protocols:
                    name = f"{library}-{protocol}"
                    group = Group(name, [*command, gateway.bootstrap_servers, _TOPIC, name, protocol, str(options.members)])
                    running.callback(group.close)
                    groups.append(group)
            found = run(groups, gateway, options.seconds)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        print(f"group_members: {error}", file=sys.stderr)
        return 1
    print(
        json.dumps({"seconds": options.seconds, "members": options.members, "request_rate": _RATE, "groups": found}, indent=2)
    )
    return int(any(figures["rebalances"] for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
