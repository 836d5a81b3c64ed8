"""`make demo`: runs until Ctrl-C or for DEMO_SECONDS, stops its processes, and then runs the report."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from loadtest.demo.clients import CLICKS, ORDERS, ROLES, Client
from loadtest.demo.picture import Tally, line, table
from loadtest.demo.totals import ledger_events, totals
from loadtest.testkit.gateway_process import GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, ToolError, run_tool
from loadtest.testkit.paths import RUN

_LEDGER, _REPORT = RUN / "demo-ledger", RUN / "demo-report"
"""The ledger and the report stay until the next demo."""

_SETTLE_SECONDS = 5.0
_SECOND = 1.0
# The burst is one second of the quota. A longer burst would be a large part of a short demo.
_QUOTAS = {"window": {"samples": 2, "seconds": 1}}
_CONFIGS = ("retention.bytes=67108864", "segment.bytes=16777216")


def main() -> int:
    """The exit code: 0 after a normal end or Ctrl-C, 1 after an error, 2 for a wrong DEMO_SECONDS."""
    try:
        seconds = _seconds()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    try:
        return _demo(console, seconds)
    except KeyboardInterrupt:
        console.print("demo: stopped")
        return 0
    except (JarsMissingError, NodeError, ToolError, GatewayError, OSError) as error:
        console.print(f"demo: {error}", markup=False)
        return 1


def _seconds() -> float | None:
    """DEMO_SECONDS, or None if it is not set. Raises `ValueError`."""
    text = os.environ.get("DEMO_SECONDS", "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"DEMO_SECONDS={text}: give a number of seconds above 0, or unset it and stop the demo with Ctrl-C")
    return seconds


def _demo(console: Console, seconds: float | None) -> int:
    RUN.mkdir(exist_ok=True)
    for old in (_LEDGER, _REPORT):
        shutil.rmtree(old, ignore_errors=True)
    code, page = _serve(console, seconds)
    console.print("demo: the whole run with the bursts, summed from the ledger; the report has the same figures:")
    for total in totals(ROLES, ledger_events(_LEDGER)):
        console.print(total.text(), markup=False)
    return code or _report(console, page)


def _serve(console: Console, seconds: float | None) -> tuple[int, str]:
    """Run Kafka, Weir and the clients; returns the exit code and the live page's address."""
    with tempfile.TemporaryDirectory(prefix="demo-", dir=RUN) as name:
        directory = Path(name)
        console.print("demo: starting Kafka (one KRaft node) ...")
        with KafkaCluster(directory) as kafka:
            console.print(f"demo: Kafka is at {kafka.bootstrap_servers}; creating topics ...")
            for topic in (ORDERS, CLICKS):
                _create_topic(kafka.bootstrap_servers, topic)
            quotas = {"entities": [role.entity() for role in ROLES], **_QUOTAS}
            config = {"quotas": quotas, "ledger": {"path": str(_LEDGER), "gateway": "demo", "flush_seconds": 1}}
            with GatewayProcess(directory / "weir", kafka.bootstrap_servers, config) as gateway:
                console.print(f"demo: Weir is at {gateway.bootstrap_servers}; open {gateway.admin}/ in a browser")
                with _clients(gateway.bootstrap_servers) as clients:
                    return _watch(console, gateway, clients, seconds), f"{gateway.admin}/"


def _report(console: Console, page: str) -> int:
    """Run the report over the demo's ledger, and print the paths. Returns the exit code."""
    console.print("demo: running the Spark report over the demo's ledger (Ctrl-C skips it) ...")
    command = [sys.executable, "-m", "gateway", "report", "--events", str(_LEDGER), "--out", str(_REPORT)]
    done = subprocess.run(command, check=False)
    if done.returncode:
        console.print(f"demo: the report ended with exit code {done.returncode}; the ledger is in {_LEDGER}", markup=False)
        return 1
    console.print(f"demo: the live page was at {page}", markup=False)
    console.print(f"demo: the report is {(_REPORT / 'report.html').as_uri()}, made from the ledger in {_LEDGER}", markup=False)
    return 0


def _create_topic(bootstrap_servers: str, topic: str) -> None:
    arguments = ["--bootstrap-server", bootstrap_servers, "--create", "--topic", topic]
    run_tool("org.apache.kafka.tools.TopicCommand", *arguments, *(part for item in _CONFIGS for part in ("--config", item)))


@contextmanager
def _clients(bootstrap_servers: str) -> Iterator[list[Client]]:
    clients = [Client(role, bootstrap_servers) for role in ROLES]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.stop()
        for client in clients:
            client.join()


def _watch(console: Console, gateway: GatewayProcess, clients: list[Client], seconds: float | None) -> int:
    tally = Tally(ROLES, _SETTLE_SECONDS)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    began = time.monotonic()
    try:
        if live:
            live.start()
        while seconds is None or time.monotonic() - began < seconds:
            left = None if seconds is None else began + seconds - time.monotonic()
            time.sleep(_SECOND if left is None else min(_SECOND, max(0.0, left)))
            failed = [f"{client.role.name}: {client.failure}" for client in clients if client.failure]
            if failed:
                console.print(f"demo: {'; '.join(failed)}", markup=False)
                return 1
            elapsed = time.monotonic() - began
            looks = tally.look(gateway.usage(), {client.role.name: client.throttle_time for client in clients}, elapsed)
            if live:
                live.update(
                    table(looks, gateway.admin, elapsed, None if left is None else max(0.0, left - _SECOND)), refresh=True
                )
            else:
                console.print(line(looks, elapsed), markup=False)
    except KeyboardInterrupt:
        pass  # a normal end
    finally:
        if live:
            live.stop()
    settled = f"after each client's first {_SETTLE_SECONDS:.0f} s, when its burst is used up"
    console.print(f"demo: mean rates {settled}, against the quotas:")
    for text in tally.summary():
        console.print(text, markup=False)
    unseen = tally.unseen()
    if unseen:
        console.print(f"demo: no requests came from {', '.join(unseen)}")
        return 0 if seconds is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
