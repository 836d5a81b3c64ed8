"""The report: medians of the ratios between proxies that were measured in the same round."""

import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from loadtest.bench.generator import Saturated
from loadtest.bench.proxies import WAYS
from loadtest.bench.rounds import CONNECT, READS, Cell, Measured, Samples

BASE = "haproxy"
PLAIN = "weir"
_TLS = (
    "Clients connect with TLS 1.3 (with OpenSSL's own choice of a cipher), and the proxy terminates it. All proxies have "
    "the same certificate. "
)
_REAL_BROKER = "Made by `make bench`. One real broker (Apache Kafka 4.3.0, one KRaft node)."
_NULL_BROKER = (
    "Made by `python -m loadtest.bench --null-broker`. A process that answers at once replaces Kafka, to measure the proxies "
    "alone. A real broker would share the cores with the proxy and displace its data from their caches."
)
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Grid:
    """A table that can be drawn on a terminal or as Markdown."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def rich(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for index, name in enumerate(self.head):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return it as a Markdown table under its title."""
        lines = [self.head, ("---", *["---:"] * (len(self.head) - 1)), *self.rows]
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cpu_per_request(sample: Saturated) -> float:
    """The proxy's CPU time for one request and its response, in microseconds."""
    return sample.cpu / sample.requests * 1e6


def paired(samples: Samples, name: str, base: str, value: Callable[[Saturated], float]) -> list[float]:
    """The values of `name` divided by those of `base`, round by round."""
    return [value(mine) / value(other) for mine, other in zip(samples[name], samples[base], strict=True)]


def cell_name(cell: Cell) -> str:
    api = f"{cell.api}, " if cell.api in READS else ""
    return f"{api}{size_name(cell.size)}, {cell.connections} connections, depth {cell.depth}"


def size_name(size: int) -> str:
    """A text such as 100 B, 16 KiB or 1 MiB."""
    for unit, bytes_ in (("MiB", _MIB), ("KiB", 1024)):
        if size >= bytes_:
            return f"{size // bytes_} {unit}"
    return f"{size} B"


def interim(cell: Cell, samples: Samples) -> str:
    parts = []
    for name, taken in samples.items():
        per_second = statistics.median(sample.requests / sample.seconds for sample in taken)
        part = f"{name} {per_second:,.0f}/s"
        if any(sample.cpu for sample in taken):
            part += f" {statistics.median(map(cpu_per_request, taken)):.1f} us"
            if BASE in samples and name != BASE:
                part += f" x{statistics.median(paired(samples, name, BASE, cpu_per_request)):.2f}"
        parts.append(part)
    api = "" if cell.api in READS else f"{cell.api} "
    return f"{api}{cell_name(cell)}: {'; '.join(parts)}"


def grids(measured: Measured) -> list[Grid]:
    proxies = [name for name in measured.ways if name != "direct"]
    produce = {cell: samples for cell, samples in measured.cells.items() if cell.api == "produce"}
    reads = {cell: samples for cell, samples in measured.cells.items() if cell.api in READS}
    connect = {cell: samples for cell, samples in measured.cells.items() if cell.api == CONNECT}
    found = []
    if produce and BASE in proxies:
        found += [_ratios_by_size(produce, proxies), _ratios(produce, proxies)]
    variants = [name for name in proxies if name.startswith(f"{PLAIN}-")]
    if produce and PLAIN in proxies and variants:
        title = "Other settings of Weir: CPU per Produce request, as a multiple of Weir's"
        found.append(_ratios_by_size(produce, variants, PLAIN, title))
    if produce:
        found.append(_absolute("Proxy CPU per Produce request, us (this machine, this day)", produce, proxies))
        found.append(_throughput(produce, measured.ways))
    if reads:
        found.append(_absolute("Proxy CPU per request, Fetch and mixed loads, us (this machine, this day)", reads, proxies))
        if BASE in proxies:
            found.append(_ratios(reads, proxies, "Proxy CPU per request, Fetch and mixed loads, as a multiple of HAProxy's"))
    if connect:
        found.append(_absolute("Proxy CPU per new connection with one Produce, us (this machine, this day)", connect, proxies))
        if BASE in proxies:
            found.append(_ratios(connect, proxies, "Proxy CPU per new connection with one Produce, as a multiple of HAProxy's"))
    return found


def _ratios_by_size(
    cells: dict[Cell, Samples],
    proxies: Sequence[str],
    base: str = BASE,
    title: str = "Proxy CPU per Produce request, as a multiple of HAProxy's: all connections and depths together",
) -> Grid:
    rows = []
    for size in dict.fromkeys(cell.size for cell in cells):
        row = [size_name(size)]
        for name in proxies:
            every = [
                ratio
                for cell, samples in cells.items()
                if cell.size == size
                for ratio in paired(samples, name, base, cpu_per_request)
            ]
            row.append(_spread(every) if name != base else "1")
        rows.append(tuple(row))
    return Grid(title, ("request", *proxies), rows)


def _ratios(cells: dict[Cell, Samples], proxies: Sequence[str], title: str = "The same, load by load") -> Grid:
    rows = [
        (
            cell_name(cell),
            *(_spread(paired(samples, name, BASE, cpu_per_request)) if name != BASE else "1" for name in proxies),
        )
        for cell, samples in cells.items()
    ]
    return Grid(title, ("load", *proxies), rows)


def _absolute(title: str, cells: dict[Cell, Samples], proxies: Sequence[str]) -> Grid:
    rows = [
        (
            cell_name(cell),
            *(f"{statistics.median(map(cpu_per_request, samples[name])):.1f}" for name in proxies),
        )
        for cell, samples in cells.items()
    ]
    return Grid(title, ("load", *proxies), rows)


def _throughput(cells: dict[Cell, Samples], ways: Sequence[str]) -> Grid:
    def rate(sample: Saturated) -> float:
        return sample.requests / sample.seconds

    rows = []
    for cell, samples in cells.items():
        row = [cell_name(cell)]
        for name in ways:
            if "direct" in ways and name != "direct":
                row.append(f"x{statistics.median(paired(samples, name, 'direct', rate)):.2f}")
            else:
                row.append(f"{statistics.median(map(rate, samples[name])):,.0f}/s")
        rows.append(tuple(row))
    title = "Requests answered per second, broker, generator and proxy sharing this machine's cores"
    return Grid(title, ("load", *ways), rows)


def _spread(ratios: Sequence[float]) -> str:
    """The median and the middle half of the rounds."""
    if len(ratios) < 4:
        return f"{statistics.median(ratios):.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def machine() -> str:
    """The system and the Python with its path, because builds of one version differ by a fifth in speed."""
    python = f"Python {platform.python_version()} of {Path(sys.executable).resolve()}"
    return f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, {python}"


def markdown(measured: Measured, grids_: Sequence[Grid], rounds: int, turn: float, day: str) -> str:
    ways = "\n".join(f"- `{name}`: {WAYS[name].description()}" for name in measured.ways)
    absent = "".join(f"- `{name}`: {why}\n" for name, why in measured.absent.items())
    return (
        f"# Paired performance comparison, {day}\n\n"
        + (_NULL_BROKER if measured.null_broker else _REAL_BROKER)
        + " Closed loops of pre-encoded Produce v11 "
        "requests (acks=1) come from a separate process, with `depth` requests in flight on each connection. The proxies take "
        f"turns of {turn:g} s in {rounds} rounds for each load, every other round backwards. CPU is the user and system time "
        "of all threads of the proxy. "
        + (_TLS if measured.tls else "")
        + "A ratio compares proxies within one round. The tables show the median of the rounds and, in brackets, their middle "
        f"half. Absolute figures are valid only for this machine ({machine()}).\n\n{ways}\n{absent}\n"
        + "\n".join(grid.markdown() for grid in grids_)
    )


def raw(measured: Measured) -> dict[str, Any]:
    """Every sample, for further analysis."""
    return {
        "machine": machine(),
        "absent": measured.absent,
        "cells": [
            {**asdict(cell), "samples": {name: [asdict(sample) for sample in taken] for name, taken in samples.items()}}
            for cell, samples in measured.cells.items()
        ],
    }
