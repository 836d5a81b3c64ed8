"""`python -m loadtest.scenarios.workers`: the requests per second of one worker and of two, and their CPU cost.

Both gateways use the same sink, a broker that needs almost no CPU. They are loaded in turn, round by round, so that noise
affects both alike. Clients have a quota that they do not reach, so every request is charged. The load sends many small
requests in one write and parses nothing, so that it leaves the CPUs to the workers.

After that, sixteen clients share one quota with a real broker, with one worker and with two.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.scenarios.workers.accuracy import accuracy
from loadtest.scenarios.workers.load import Job, LoadResult, frames
from loadtest.scenarios.workers.processors import part_of_a_processor
from loadtest.testkit.compiled_build import build_of, compiled_build
from loadtest.testkit.gateway_process import CompiledGateway, GatewayProcess
from loadtest.testkit.kafka import free_port, spawn, stop

_PLENTY = 10**12
_QUOTAS = {"entities": [{"user": "<default>", "producer_byte_rate": _PLENTY}]}
_SIZES = (100, 16 * 1024)
_LOAD_PART = 0.5
"""The part of a CPU for each end of the load, if workers have parts. It is more than they need."""


def measure(size: int, rounds: int, seconds: float, connections: int, part: float) -> dict[int, list[LoadResult]]:
    """The results of one worker and of two, round by round. `part` is the part of a CPU for each worker; 0 means all."""
    _, length = frames(size)
    port = free_port()
    found: dict[int, list[LoadResult]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="weir-loadtest-") as directory, ExitStack() as running:
        sink = spawn([sys.executable, "-m", "loadtest.scenarios.workers.sink", str(port), str(length)])
        running.callback(stop, sink, timeout=5.0)
        gateways = {}
        for workers in found:
            config: dict[str, Any] = {"workers": workers, "quotas": _QUOTAS, "sharing": None}
            # Not /readyz, because the sink does not answer Metadata.
            gateway = CompiledGateway(Path(directory, str(workers)), f"127.0.0.1:{port}", config, wait="/api/quotas")
            gateways[workers] = running.enter_context(gateway)
        pids = {workers: _pids(gateway, workers) for workers, gateway in gateways.items()}
        for pid in (*pids[1], *pids[2]) if part else ():
            running.enter_context(part_of_a_processor(pid, part))
        if part:
            running.enter_context(part_of_a_processor(sink.pid, _LOAD_PART))
        for turn in range(rounds):
            for workers in sorted(found, reverse=bool(turn % 2)):
                gateway = gateways[workers]
                job = Job(gateway.bootstrap_servers, size, connections, seconds, pids[workers], (sink.pid,))
                found[workers].append(_run_load(job, _LOAD_PART if part else 0.0))
    return found


def _run_load(job: Job, part: float) -> LoadResult:
    command = [sys.executable, "-m", "loadtest.scenarios.workers.load", json.dumps(asdict(job))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ExitStack() as running:
        if part:
            running.enter_context(part_of_a_processor(process.pid, part))
        out, _ = process.communicate(timeout=job.seconds + 60)
    if process.returncode:
        raise RuntimeError(f"the load ended with exit code {process.returncode}")
    return LoadResult(**json.loads(out))


def _pids(gateway: GatewayProcess, workers: int) -> tuple[int, ...]:
    """The processes that carry traffic, once all of them do."""
    if workers == 1:
        return (gateway.pid,)
    while True:
        states = json.loads(gateway.get("/api/workers"))["workers"]
        if f'weir_worker_up{{worker="{workers - 1}"}} 1.0' in gateway.get("/metrics"):
            return tuple(state["pid"] for state in states)


def report(size: int, found: dict[int, list[LoadResult]]) -> dict[str, Any]:
    """The medians over the rounds, and of the ratios within a round."""

    def median(workers: int, value: str) -> float:
        return statistics.median([_FIGURES[value](each) for each in found[workers]])

    pairs = list(zip(found[1], found[2], strict=True))
    more = [two.requests / two.seconds / (one.requests / one.seconds) for one, two in pairs]
    per_cpu = [two.requests / two.gateway_cpu / (one.requests / one.gateway_cpu) for one, two in pairs]
    return {
        "size": size,
        "workers": {str(workers): {name: median(workers, name) for name in _FIGURES} for workers in found},
        "throughput_of_two_over_one": {"median": statistics.median(more), "least": min(more), "most": max(more)},
        "throughput_per_cpu_second_of_two_over_one": statistics.median(per_cpu),
        "rounds": {str(workers): [asdict(each) for each in rounds] for workers, rounds in found.items()},
    }


_FIGURES: dict[str, Callable[[LoadResult], float]] = {
    "requests_per_second": lambda result: result.requests / result.seconds,
    "requests_per_gateway_cpu_second": lambda result: result.requests / result.gateway_cpu,
    "gateway_processors": lambda result: result.gateway_cpu / result.seconds,
    "load_processors": lambda result: result.load_cpu / result.seconds,
    "others_processors": lambda result: (result.machine_cpu - result.gateway_cpu - result.load_cpu) / result.seconds,
}


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="one worker and two", title_justify="left")
    for name in ("records", "workers", "requests/s", "per CPU second", "gateway", "load", "others", "two over one"):
        table.add_column(name, justify="right")
    for result in results:
        for workers, figures in result["workers"].items():
            ratio = result["throughput_of_two_over_one"]
            table.add_row(
                f"{result['size']} B",
                workers,
                f"{figures['requests_per_second']:,.0f}",
                f"{figures['requests_per_gateway_cpu_second']:,.0f}",
                *(f"{figures[name]:.2f} CPUs" for name in ("gateway_processors", "load_processors", "others_processors")),
                f"{ratio['median']:.2f} ({ratio['least']:.2f}-{ratio['most']:.2f})" if workers == "2" else "",
            )
    return table


def main() -> int:
    """Measure, print the table, and write it with --out."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the load, for each round and gateway")
    parser.add_argument(
        "--accuracy-seconds", type=int, default=40, help="duration of the accuracy test for each number of workers; 0 skips it"
    )
    parser.add_argument("--part", type=float, default=0.0, help="part of a CPU for each worker, for busy machines; needs root")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--out", type=Path, help="file for the results, such as loadtest/results/workers.json")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    results = [
        report(size, measure(size, options.rounds, options.seconds, options.connections, options.part)) for size in _SIZES
    ]
    Console(width=140).print(_table(results))
    quotas = accuracy(options.accuracy_seconds) if options.accuracy_seconds else {}
    for workers, phase in quotas.items():
        print(f"{workers} workers: mean {phase.mean:.3f} of the quota, seconds from {phase.lowest:.2f} to {phase.highest:.2f}")
    if options.out is not None:
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "processors": os.cpu_count(),
            "load_average_before": before,
            "python": platform.python_version(),
            "compiled": build_of(compiled_build()) == "compiled",
            "connections": options.connections,
            "processor_part_of_a_worker": options.part or None,
        }
        found = {str(workers): asdict(phase) for workers, phase in quotas.items()}
        options.out.write_text(json.dumps({**about, "throughput": results, "accuracy": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
