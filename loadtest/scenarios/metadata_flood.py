"""`python -m loadtest.scenarios.metadata_flood`: a client floods Metadata under `request_rates`; measures a bystander's p99.

The flooding client has its own process and ignores throttle times: it offers its requests at a steady rate on open connections.
A connection that is muted takes no more than its socket's buffers. The bystander produces at a steady rate, in alternating
turns without and with the flood.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.bench.generator import Job, Paced
from loadtest.bench.rounds import paced
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, run_tool
from loadtest.testkit.paths import RUN

_TOPIC, _CLIENT_ID = "bystander", b"flood"
_CONNECTIONS, _RATE, _SIZE = 4, 10, 1024
_PATIENCE_SECONDS = 60.0
_STEP_SECONDS = 0.002
_METADATA = struct.pack(">hhih", 3, 8, 1, len(_CLIENT_ID)) + _CLIENT_ID + struct.pack(">i???", 0, False, False, False)
_REQUEST = struct.pack(">i", len(_METADATA)) + _METADATA
"""Metadata v8 without topics: the smallest answer of a broker."""


def flood(address: tuple[str, int], per_second: int, results: Connection) -> None:
    """Offer requests until `results` has a message. Sends the numbers of offered and sent requests."""
    clients = [socket.create_connection(address) for _ in range(_CONNECTIONS)]
    rests = [b""] * _CONNECTIONS
    for client in clients:
        client.setblocking(False)
    start, offered, sent = time.monotonic(), 0, 0
    while not results.poll(_STEP_SECONDS):
        due = int((time.monotonic() - start) * per_second) - offered
        offered += due
        for number, client in enumerate(clients):
            # The rest of a request goes out first. Requests that find no room are dropped, as their time is over.
            data = rests[number] + _REQUEST * (due // _CONNECTIONS)
            try:
                done = client.send(data)
            except BlockingIOError:
                done = 0
            partial = (done - len(rests[number])) % len(_REQUEST) if done >= len(rests[number]) else 0
            whole = max(done - len(rests[number]), 0) // len(_REQUEST)
            sent += whole + (partial > 0)
            rests[number] = _REQUEST[partial:] if partial else rests[number][done:]
            try:
                while client.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass
    results.send((offered, sent, time.monotonic() - start))


class Flood:
    """A context manager: the flood, once it is throttled. Raises `RuntimeError` if it never is."""

    def __init__(self, gateway: GatewayProcess, per_second: int) -> None:
        self._gateway = gateway
        host, _, port = gateway.bootstrap_servers.rpartition(":")
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=flood, args=((host, int(port)), per_second, theirs), daemon=True
        )
        self.offered_per_second = self.sent_per_second = 0.0

    def __enter__(self) -> "Flood":
        self._process.start()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        before = throttled(self._gateway)
        while throttled(self._gateway) < before + 2 * _CONNECTIONS:
            if time.monotonic() > deadline or not self._process.is_alive():
                raise RuntimeError("the flood is not throttled in time")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        if self._pipe.poll(_PATIENCE_SECONDS):
            offered, sent, seconds = self._pipe.recv()
            self.offered_per_second, self.sent_per_second = offered / seconds, sent / seconds
        self._process.join(_PATIENCE_SECONDS)
        self._process.kill()


def throttled(gateway: GatewayProcess) -> int:
    rows = [row for row in gateway.usage() if row["kind"] == "request_rate.Metadata"]
    return sum(row["throttled_total"] for row in rows)


def measure(options: argparse.Namespace) -> tuple[list[tuple[Paced, Paced]], list[Flood]]:
    """The bystander's latency without and with the flood, and the floods."""
    RUN.mkdir(exist_ok=True)
    limits = {"quotas": {"entities": [{"client-id": _CLIENT_ID.decode(), "request_rates": {"Metadata": _RATE}}]}}
    gateway_class = GatewayProcess if options.interpreted else CompiledGateway
    pairs: list[tuple[Paced, Paced]] = []
    floods: list[Flood] = []
    with (
        tempfile.TemporaryDirectory(prefix="metadata-flood-", dir=RUN) as directory,
        KafkaCluster(Path(directory)) as kafka,
        gateway_class(Path(directory) / "weir", kafka.bootstrap_servers, limits) as gateway,
    ):
        arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", _TOPIC, "--partitions", "1"]
        run_tool("org.apache.kafka.tools.TopicCommand", *arguments)
        job = Job(gateway.bootstrap_servers, _TOPIC, 1, _SIZE, mode="pace", rate=options.rate, seconds=options.seconds)
        for _ in range(3):
            paced(job)  # lets the broker's JVM compile
        for number in range(options.pairs):
            turns: dict[bool, Paced] = {}
            for flooded in (number % 2 == 1, number % 2 == 0):
                if flooded:
                    with Flood(gateway, options.per_second) as running:
                        turns[True] = paced(job)
                    floods.append(running)
                else:
                    turns[False] = paced(job)
            pairs.append((turns[False], turns[True]))
            print(
                f"pair {number + 1}: p99 {turns[False].p99:.0f} us quiet, {turns[True].p99:.0f} us beside the flood", flush=True
            )
    return pairs, floods


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.metadata_flood", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of turns: one quiet, one with the flood (default: 10)")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a turn (default: 8)")
    parser.add_argument("--rate", type=float, default=500.0, help="the bystander's requests per second (default: 500)")
    parser.add_argument("--per-second", type=int, default=20_000, help="Metadata requests per second (default: 20000)")
    parser.add_argument("--interpreted", action="store_true", help="run the sources, without the compiled build")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.pairs < 1 or options.seconds <= 0:
        parser.error("--pairs and --seconds must be above 0")
    try:
        pairs, floods = measure(options)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        print(f"metadata_flood: {error}", file=sys.stderr)
        return 1
    table = Table(title=f"a bystander's latency at {options.rate:g} requests/s of {_SIZE} bytes, in us")
    for name in ("pair", "p50 quiet", "p50 flood", "p99 quiet", "p99 flood", "ratio of p99"):
        table.add_column(name, justify="right")
    for number, (quiet, beside) in enumerate(pairs, 1):
        cells = (quiet.p50, beside.p50, quiet.p99, beside.p99)
        table.add_row(str(number), *(f"{cell:.0f}" for cell in cells), f"{beside.p99 / quiet.p99:.3f}")
    Console().print(table)
    figures = {
        "ratio_of_p99": round(statistics.median(beside.p99 / quiet.p99 for quiet, beside in pairs), 3),
        "offered_per_second": round(statistics.median(each.offered_per_second for each in floods)),
        "sent_per_second": round(statistics.median(each.sent_per_second for each in floods)),
    }
    print(f"median of the ratios: {figures['ratio_of_p99']:.3f}")
    print(f"the flood offered {figures['offered_per_second']:,} requests/s; its sockets took {figures['sent_per_second']:,}/s")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
