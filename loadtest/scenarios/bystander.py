"""`python -m loadtest.scenarios.bystander`: does a client without a quota keep its rate while another one is throttled?

Both clients are unpaced. The bystander runs alone and beside the throttled client in alternating turns, so that noise
affects both alike. A turn begins after the throttled client has used its burst. The result compares acknowledged requests
per second.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.bench.generator import Job
from loadtest.bench.rounds import saturated
from loadtest.demo.clients import Client, Role
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, run_tool
from loadtest.testkit.paths import RUN

_HELD_TOPIC, _TOPIC, _PARTITIONS = "held", "bystander", 4
_KIB = 1024
_PATIENCE_SECONDS = 60.0
_WARM_UP_TURNS = 4
_HELD = Role("held", "produce", _HELD_TOPIC, 64 * _KIB, None, "sends without a pause and is throttled to its quota")


@contextmanager
def held_client(gateway: GatewayProcess) -> Iterator[None]:
    """A client that is already throttled. Raises `RuntimeError` if it never is."""
    client = Client(_HELD, gateway.bootstrap_servers)
    before = _throttled(gateway)
    client.start()
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while _throttled(gateway) < before + 2:
            if client.failure or time.monotonic() > deadline:
                raise RuntimeError(f"the client is not throttled in time: {client.failure or 'no error'}")
            time.sleep(0.05)
        yield
    finally:
        client.stop()
        client.join()


def _throttled(gateway: GatewayProcess) -> int:
    rows = [row for row in gateway.usage() if row["client_id"] == _HELD.name and row["kind"] == "produce"]
    return sum(row["throttled_total"] for row in rows)


def measure(pairs: int, seconds: float, size: int) -> list[tuple[float, float]]:
    """(requests/s alone, requests/s beside the throttled client) of each pair."""
    RUN.mkdir(exist_ok=True)
    results: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="bystander-", dir=RUN) as directory,
        KafkaCluster(Path(directory)) as kafka,
        CompiledGateway(
            Path(directory) / "weir", kafka.bootstrap_servers, {"quotas": {"entities": [_HELD.entity()]}}
        ) as gateway,
    ):
        for topic, partitions in ((_HELD_TOPIC, 1), (_TOPIC, _PARTITIONS)):
            arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", topic]
            run_tool("org.apache.kafka.tools.TopicCommand", *arguments, "--partitions", str(partitions))
        job = Job(gateway.bootstrap_servers, _TOPIC, _PARTITIONS, size, connections=4, depth=5, seconds=seconds)

        def rate() -> float:
            result = saturated(job)
            return result.requests / result.seconds

        for _ in range(_WARM_UP_TURNS):  # lets the broker's JVM compile
            rate()
        for number in range(pairs):
            first = rate() if number % 2 == 0 else 0.0
            with held_client(gateway):
                beside = rate()
            results.append((first or rate(), beside))
            print(f"pair {number + 1}: {results[-1][0]:.0f}/s alone, {beside:.0f}/s beside the throttled client", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.bystander", description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=8, help="pairs of turns: one alone, one beside the throttled client (default: 8)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of a turn (default: 5)")
    parser.add_argument(
        "--size", type=int, default=16 * _KIB, help="size of the bystander's requests in bytes (default: 16384)"
    )
    options = parser.parse_args()
    if options.pairs < 1 or options.seconds <= 0:
        parser.error("--pairs and --seconds must be above 0")
    try:
        results = measure(options.pairs, options.seconds, options.size)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        print(f"bystander: {error}", file=sys.stderr)
        return 1
    table = Table(title=f"a bystander's requests of {options.size} bytes, per second")
    for name in ("pair", "alone", "beside", "ratio"):
        table.add_column(name, justify="right")
    for number, (alone, beside) in enumerate(results, 1):
        table.add_row(str(number), f"{alone:.0f}", f"{beside:.0f}", f"{beside / alone:.3f}")
    Console().print(table)
    print(f"median of the ratios: {statistics.median(beside / alone for alone, beside in results):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
