"""`python -m loadtest.scenarios.topics`: a producer exceeds its topic's share. Each record must arrive once and in order.

Producers also write to four cold topics, so that a share is a fifth of the total; Weir must reject none of them. The meters
must equal the bytes in the broker's log segments.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, ToolError, run_tool
from loadtest.testkit.numbered_records import PARTITIONS, PRODUCER, arrived, producer_arguments
from loadtest.testkit.paths import RUN

_HOT, _COLD = "hot", ["cold-1", "cold-2", "cold-3", "cold-4"]
_COLD_RECORD, _COLD_PAUSE = 10_000, 0.1
_PATIENCE_SECONDS = 60.0


class _ColdTopics(threading.Thread):
    """Writes about 100 kB/s to each of the cold topics until stopped."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers})
        self._over = threading.Event()
        self.failed = 0

    def run(self) -> None:
        while not self._over.wait(_COLD_PAUSE):
            for topic in _COLD:
                self._producer.produce(topic, bytes(_COLD_RECORD), callback=self._note)
            self._producer.poll(0)
        self.failed += self._producer.flush(_PATIENCE_SECONDS)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _note(self, error: object, _: object) -> None:
        self.failed += error is not None


def _on_disk(directory: Path, topic: str) -> int:
    return sum(segment.stat().st_size for segment in directory.rglob(f"{topic}-[0-9]/*.log"))


def measure(megabytes: int, total: int, meter: str, size: int, settings: list[str]) -> bool:
    """Run the scenario and print the results; returns True if all checks hold."""
    RUN.mkdir(exist_ok=True)
    count = megabytes * 1_000_000 // size
    topics = {"total.bytes.in.per.sec.threshold": total, "meter": meter}
    with (
        tempfile.TemporaryDirectory(prefix="topics-", dir=RUN) as directory,
        KafkaCluster(Path(directory) / "kafka") as kafka,
        CompiledGateway(Path(directory) / "weir", kafka.bootstrap_servers, {"quotas": {"topics": topics}}) as gateway,
    ):
        for topic in (_HOT, *_COLD):
            arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", topic]
            run_tool("org.apache.kafka.tools.TopicCommand", *arguments, "--partitions", str(PARTITIONS))
        cold = _ColdTopics(gateway.bootstrap_servers)
        cold.start()
        began = time.monotonic()
        arguments = producer_arguments(gateway.bootstrap_servers, _HOT, count, "linger.ms=5", *settings, size=size)
        print(run_tool(PRODUCER, *arguments, timeout=1_800), end="")
        seconds = time.monotonic() - began
        cold.stop()
        rows: dict[str, Any] = {row["topic"]: row for row in json.loads(gateway.get("/api/topics"))["rows"]}
        records = arrived(kafka.bootstrap_servers, _HOT)
        disk = {topic: _on_disk(Path(directory) / "kafka", topic) for topic in rows}
        log_lines = gateway.log().count("not appended: quota")
    hot = rows[_HOT]
    found = {
        "every record of the hot topic arrived once": records.numbers == list(range(count)),
        "in order in each partition": records.in_order,
        "the quota rejected some requests": hot["throttled_total"] > 0,
        "no cold topic was rejected": all(rows[topic]["throttled_total"] == 0 for topic in _COLD) and cold.failed == 0,
        "the meters equal the logs": all(rows[topic]["appended_bytes"] == disk[topic] for topic in rows),
    }
    print(f"{count} records of {size} bytes in {seconds:.1f} s, {hot['appended_bytes'] / seconds / 1e6:.2f} MB/s")
    print(f"{hot['throttled_total']} requests, {hot['throttled_bytes'] / 1e6:.1f} MB rejected; {log_lines} lines of the log")
    print(f"appended: { ({topic: row['appended_bytes'] for topic, row in rows.items()}) }")
    for what, holds in found.items():
        print(f"{'yes' if holds else 'NO '}  {what}")
    return all(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.topics", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="megabytes for the hot topic (default: 100)")
    parser.add_argument("--total", type=int, default=10_000_000, help="total threshold in bytes/s (default: 10000000)")
    parser.add_argument(
        "--meter", choices=["one_minute", "window"], default="window", help="algorithm of the rates (default: window)"
    )
    parser.add_argument("--size", type=int, default=1_000, help="size of a record in bytes (default: 1000)")
    parser.add_argument(
        "--producer", nargs="*", default=["enable.idempotence=true"], metavar="KEY=VALUE", help="settings of the Java producer"
    )
    options = parser.parse_args()
    if options.megabytes < 1 or options.total < 1 or options.size < 100:
        parser.error("--megabytes and --total must be at least 1, --size at least 100")
    try:
        held = measure(options.megabytes, options.total, options.meter, options.size, options.producer)
    except (JarsMissingError, NodeError, GatewayError, ToolError, RuntimeError) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
