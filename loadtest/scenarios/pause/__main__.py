"""`python -m loadtest.scenarios.pause`: producers send at a steady rate while the volume quota pauses them for about 20 s.

Prints each client's behaviour during the pause, and checks that its records arrived once and in order. The franz-go
client is built from `franz_go/` if Go and its module proxy are available.
"""

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, franz_go, run_tool, spawn
from loadtest.testkit.kafka.jars import java
from loadtest.testkit.numbered_records import PARTITIONS, PRODUCER, arrived, producer_arguments
from loadtest.testkit.paths import RUN

_HERE = Path(__file__).parent
_USAGE_TOPIC = "__weir_volume_usage"
_BEFORE_SECONDS = 4.0
_AFTER_SECONDS = 4.0
_PATIENCE_SECONDS = 240.0

CLIENTS = ("java", "librdkafka", "librdkafka-idempotent", "aiokafka", "kafka-python", "franz-go")

Figures = dict[str, object]


def publish_usage(bootstrap_servers: str, consumed: int) -> None:
    """Publish that `used` bytes of the broker's volume of 1000 bytes are in use; the hard limit is 900."""
    message = {
        "Version": 1,
        "SnapshotAt": datetime.now(UTC).isoformat(),
        "Hard limit": {"type": "ConsumedSpace", "level": 900},
        "Soft limit": {"type": "ConsumedSpace", "level": 500},
        "Volumes": [{"VolumeName": "/data", "Capacity": 1000, "Consumed": consumed}],
    }
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(_USAGE_TOPIC, json.dumps(message).encode(), key=b"0")
    if producer.flush(60):
        raise RuntimeError("the usage can't be published")


def metric(gateway: GatewayProcess, name: str, **labels: str) -> float:
    """The sum of all samples with these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(gateway.get("/metrics"))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for_state(gateway: GatewayProcess, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while json.loads(gateway.get("/api/volumes"))["state"] != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the gateway does not get to {wanted}: {gateway.get('/api/volumes')}")
        time.sleep(0.05)


def measure(
    gateway: GatewayProcess, brokers: str, name: str, program: list[str], pause: float, pace: float, settings: list[str]
) -> Figures:
    """Run one client through one pause."""
    topic = f"paused-{name}"
    run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", brokers, "--create", "--topic", topic, "--partitions", str(PARTITIONS)),
    )
    publish_usage(brokers, 100)
    wait_for_state(gateway, "OPEN")
    count = int((_BEFORE_SECONDS + pause + _AFTER_SECONDS) * pace)
    arguments = producer_arguments(gateway.bootstrap_servers, topic, count, *settings, per_second=pace)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        client = spawn([*program, *arguments], stdout=output, stderr=output)
        requests = metric(gateway, "weir_requests_total", api="Produce")
        while metric(gateway, "weir_requests_total", api="Produce") < requests + 5:
            time.sleep(0.05)
        time.sleep(_BEFORE_SECONDS)
        publish_usage(brokers, 950)
        wait_for_state(gateway, "PAUSE")
        refused = metric(gateway, "weir_volume_produce_requests_total", result="refused")
        accepted = metric(gateway, "weir_connections_accepted_total")
        held = time.monotonic()
        time.sleep(pause)
        refused = metric(gateway, "weir_volume_produce_requests_total", result="refused") - refused
        publish_usage(brokers, 100)
        wait_for_state(gateway, "OPEN")
        ended = time.monotonic()
        opened = metric(gateway, "weir_requests_total", api="Produce")
        while metric(gateway, "weir_requests_total", api="Produce") == opened:
            time.sleep(0.02)
        resumed = time.monotonic() - ended
        accepted = metric(gateway, "weir_connections_accepted_total") - accepted
        client.wait(_PATIENCE_SECONDS)
        output.seek(0)
        said = [line for line in output.read().splitlines() if line.startswith("failed ")]
    found = arrived(brokers, topic)
    return {
        "records": count,
        "failed": said[-1] if said else f"exit code {client.returncode}",
        "once": found.numbers == list(range(count)),
        "missing": count - len(set(found.numbers)),
        "twice": found.repeated,
        "in_order": found.in_order,
        "refused_per_second": round(refused / (ended - held), 2),
        "new_connections": int(accepted),
        "seconds_until_first_request_after_pause": round(resumed, 2),
    }


def _program(name: str, directory: Path) -> list[str] | None:
    """The command of a client; None if it can't be built here."""
    if name == "java":
        return [*java(logging="tool"), str(PRODUCER)]
    if name == "franz-go":
        return franz_go(_HERE / "franz_go", directory / "paced")
    return [sys.executable, "-m", "loadtest.scenarios.pause.paced", name]


def main() -> int:
    """Measure and print JSON; returns 1 if a record was lost."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.pause", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the pause (default: 20)")
    parser.add_argument("--pace", type=float, default=200.0, help="records of 1000 bytes per second (default: 200)")
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--java", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of the Java producer")
    options = parser.parse_args()
    RUN.mkdir(exist_ok=True)
    volumes = {"source": "topic", "freshness_seconds": 3600}
    seen: dict[str, Figures] = {}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="pause-", dir=RUN) as folder,
            KafkaCluster(Path(folder) / "kafka") as kafka,
            CompiledGateway(Path(folder) / "weir", kafka.bootstrap_servers, {"quotas": {"volumes": volumes}}) as gateway,
        ):
            for name in options.clients:
                settings = options.java if name == "java" else []
                if program := _program(name, Path(folder)):
                    seen[name] = measure(
                        gateway, kafka.bootstrap_servers, name, program, options.seconds, options.pace, settings
                    )
                    print(name, json.dumps(seen[name]), file=sys.stderr, flush=True)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        print(f"pause: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"pause_seconds": options.seconds, "records_per_second": options.pace, "clients": seen}, indent=2))
    return int(any(figures["missing"] for figures in seen.values()))


if __name__ == "__main__":
    sys.exit(main())
