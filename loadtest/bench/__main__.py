"""`python -m loadtest.bench`: the paired performance comparison. All proxies use the same broker in the same run."""

import argparse
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench import latency_report, report
from loadtest.bench.latency import LATENCY_WAYS, measure_latency
from loadtest.bench.proxies import WAYS, Tls, Way, WeirBefore
from loadtest.bench.rounds import (
    CONNECT,
    CONNECTIONS,
    DEPTHS,
    FETCH_SIZES,
    READS,
    SIZES,
    Cell,
    Measured,
    Samples,
    broker,
    measure,
    null_broker,
    started,
    warm_up,
    warm_up_ways,
)
from loadtest.testkit.gateway_process import GatewayError
from loadtest.testkit.kafka import JarsMissingError, NodeError
from loadtest.testkit.paths import RESULTS, RUN

_TURN = 1.0
_LATENCY_TURN = 2.0
_LATENCY_ROUNDS = 12
TLS_WAYS = ("weir", "haproxy", "haproxy-64k")
_CPU_WAYS = tuple(name for name in WAYS if name not in {"weir-before", "weir-watched"})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=24.0,
        help="load for each request size and proxy, split over connections and depths (default: 24; without start-up)",
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="request sizes in bytes (default: %(default)s)")
    parser.add_argument(
        "--proxies", help=f"proxies to compare: {','.join(WAYS)} (with --tls: {','.join(TLS_WAYS)}); direct is no proxy"
    )
    parser.add_argument(
        "--connect", action="store_true", help="measure only new connections, with one Produce of 100 bytes on each"
    )
    parser.add_argument("--reads", action="store_true", help="measure only Fetch and mixed loads, of 16 KiB and 1 MiB")
    parser.add_argument(
        "--latency",
        action="store_true",
        help="measure only latency, in an open loop at 20, 50 and 80 %% of one processor (needs two, and a quiet machine)",
    )
    parser.add_argument(
        "--rounds", type=int, default=_LATENCY_ROUNDS, help="rounds of a latency measurement (default: %(default)s)"
    )
    parser.add_argument("--tls", action="store_true", help="clients connect with TLS, and the proxy terminates it")
    parser.add_argument(
        "--null-broker",
        action="store_true",
        help="use a process that answers at once instead of Kafka, to measure the proxies alone (no Fetch)",
    )
    parser.add_argument("--baseline", type=Path, help="checkout of another commit to compare with, as weir-before")
    parser.add_argument(
        "--out", type=Path, help="folder for DATE-bench[-MODE].md (a full run: loadtest/results); the samples go to .run"
    )
    options = parser.parse_args()
    try:
        options.sizes = tuple(int(size) for size in options.sizes.split(","))
    except ValueError:
        parser.error(f"--sizes {options.sizes}: give numbers of bytes, such as 100,16384")
    ways = LATENCY_WAYS if options.latency else TLS_WAYS if options.tls else _CPU_WAYS
    if options.baseline is not None:
        WeirBefore.checkout = options.baseline.resolve()
    options.proxies = tuple(options.proxies.split(",")) if options.proxies else ways
    if options.baseline is not None and "weir-before" not in options.proxies:
        options.proxies = ("weir-before", *options.proxies)
    if options.baseline is None and "weir-before" in options.proxies:
        parser.error("--proxies weir-before: name the checkout of the other commit with --baseline")
    unknown = [name for name in options.proxies if name not in WAYS]
    if unknown:
        parser.error(f"--proxies {', '.join(unknown)}: unknown; choose from {', '.join(WAYS)}")
    if options.tls + options.null_broker + options.latency > 1:
        parser.error("--tls, --null-broker and --latency can't be combined: choose one")
    if options.reads and (options.null_broker or options.latency or options.connect):
        parser.error("--reads needs Kafka, and can't be combined with --null-broker, --latency or --connect")
    if options.latency and "direct" not in options.proxies:
        parser.error("--proxies: add direct, because --latency compares each proxy with no proxy")
    partial = options.connect or options.reads or options.latency or set(options.sizes) != set(SIZES)
    options.full = not partial and set(options.proxies) >= set(ways)
    if options.full and options.out is None:
        options.out = RESULTS
    return options


def main() -> int:
    """Measure, print and write the results; returns the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the finally blocks stop all child processes
    console = Console(width=None if sys.stdout.isatty() else 160)
    loads = [(connections, depth) for connections in CONNECTIONS for depth in DEPTHS]
    rounds = max(1, round(options.seconds / len(loads) / _TURN))
    cells = [Cell("produce", size, *load) for size in options.sizes for load in loads]
    reads = [Cell(api, size, 8, depth) for api in READS for size in FETCH_SIZES for depth in DEPTHS]
    if options.reads:
        cells = reads
    elif options.full and not options.null_broker:
        cells += reads
    new_connections = Cell(CONNECT, 100, 8, 1)
    cells = [new_connections] if options.connect else [*cells, new_connections] if options.full else cells
    try:
        if options.latency:
            return _latency(console, options.proxies, options.rounds, options.out)
        if options.null_broker:
            measured = _measure_without_kafka(console, options.proxies, cells, rounds)
        else:
            measured = _measure(console, options.proxies, cells, rounds, tls=options.tls)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        console.print(f"bench: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    grids = report.grids(measured)
    for grid in grids:
        console.print(grid.rich())
    for name, why in measured.absent.items():
        console.print(f"{name}: {why}", markup=False)
    if options.out is not None:
        text = report.markdown(measured, grids, rounds, _TURN, _today())
        kinds = [kind for kind in ("tls", "null-broker", "connect", "reads") if getattr(options, kind.replace("-", "_"))]
        _write(console, options.out, "-".join(["bench", *kinds]), text, report.raw(measured))
    return 0


def _latency(console: Console, names: tuple[str, ...], rounds: int, out: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory:
        results, absent = measure_latency(
            names, Path(directory), rounds, _LATENCY_TURN, lambda line: console.print(line, markup=False)
        )
    grids = latency_report.grids(results)
    for grid in grids:
        console.print(grid.rich())
    for name, why in absent.items():
        console.print(f"{name}: {why}", markup=False)
    if out is not None:
        text = latency_report.markdown(results, absent, grids, _LATENCY_TURN, _today())
        _write(console, out, "latency", text, latency_report.raw(results))
    return 0


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _write(console: Console, out: Path, name: str, text: str, raw: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    RUN.mkdir(exist_ok=True)
    summary, samples = out / f"{_today()}-{name}.md", RUN / f"{_today()}-{name}.json"
    summary.write_text(text)
    samples.write_text(json.dumps(raw, indent=1) + "\n")
    console.print(f"written: {summary}, and every sample: {samples}", markup=False)


def _measure(console: Console, names: tuple[str, ...], cells: list[Cell], rounds: int, *, tls: bool) -> Measured:
    console.print("bench: starting Kafka ...")
    with ExitStack() as stack:
        cluster, directory = stack.enter_context(broker())
        secured = Tls.make(directory / "certificates") if tls else None
        ways, absent = stack.enter_context(started(names, cluster.bootstrap_servers, directory, secured))
        console.print(f"bench: warming up; then {rounds} rounds of {_TURN:g} s of: {', '.join(ways)}")
        for name, why in absent.items():
            console.print(f"bench: {name}: {why}", markup=False)
        sizes = sorted({cell.size for cell in cells if cell.api not in READS})
        warm_up(cluster.bootstrap_servers, sizes)
        warm_up_ways(ways, sizes)
        results = _rounds(console, ways, cells, rounds)
    return Measured(list(ways), absent, results, tls)


def _measure_without_kafka(console: Console, names: tuple[str, ...], cells: list[Cell], rounds: int) -> Measured:
    with ExitStack() as stack:
        address, directory = stack.enter_context(null_broker())
        ways, absent = stack.enter_context(started(names, address, directory))
        console.print(f"bench: with a null broker; {rounds} rounds of {_TURN:g} s of: {', '.join(ways)}")
        results = _rounds(console, ways, cells, rounds)
    return Measured(list(ways), absent, results, null_broker=True)


def _rounds(console: Console, ways: dict[str, Way], cells: list[Cell], rounds: int) -> dict[Cell, Samples]:
    return measure(ways, cells, rounds, _TURN, lambda cell, samples: console.print(report.interim(cell, samples), markup=False))


if __name__ == "__main__":
    sys.exit(main())
