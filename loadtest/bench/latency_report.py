"""The tables of a latency measurement."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadtest.bench.latency import BASE, FIELDS, LATENCY_SIZE, QUIET, WATCHED, Level, OpenSamples, added, ratio, values
from loadtest.bench.open_loop import OpenLoop
from loadtest.bench.proxies import WAYS
from loadtest.bench.report import Grid, machine, size_name

_NAMES = {"p50": "p50", "p99": "p99", "p999": "p99.9"}


def grids(results: dict[Level, OpenSamples]) -> list[Grid]:
    """Each table has the medians of the rounds."""
    return [*(_absolute(level, samples) for level, samples in results.items()), *_ratios(results), *_watched(results)]


def level_name(level: Level) -> str:
    return f"{level.share:.0%} of one processor, {level.rate:,.0f} requests/s"


def _absolute(level: Level, samples: OpenSamples) -> Grid:
    rows = []
    for name in samples:
        own = [f"{np.median(values(samples, name, field)):.0f}" for field in FIELDS]
        above = [f"{np.median(added(samples, name, field)):+.0f}" for field in FIELDS] if name != "direct" else ["", "", ""]
        lag = [f"{np.median(values(samples, name, f'lag_{field}')):.0f}" for field in FIELDS]
        shares = [f"{np.median(values(samples, name, field)):.0%}" for field in ("busy", "disturbed")]
        rows.append((name, *shares, *own, *above, *lag))
    head = ("way", "CPU", "disturbed", *_NAMES.values(), *(f"added {name}" for name in _NAMES.values()))
    return Grid(f"Latency at {level_name(level)}, us", (*head, *(f"lag {name}" for name in _NAMES.values())), rows)


def _ratios(results: dict[Level, OpenSamples]) -> list[Grid]:
    rows = [
        (level_name(level), name, *(str(ratio(added(samples, name, field), added(samples, BASE, field))) for field in FIELDS))
        for level, samples in results.items()
        if BASE in samples
        for name in samples
        if name not in {"direct", BASE}
    ]
    return [Grid("Added latency, as a multiple of HAProxy's", ("load", "way", *_NAMES.values()), rows)] if rows else []


def _watched(results: dict[Level, OpenSamples]) -> list[Grid]:
    rows = [
        (
            level_name(level),
            way,
            *(str(ratio(values(samples, way, field), values(samples, QUIET, field))) for field in FIELDS),
        )
        for level, samples in results.items()
        if QUIET in samples
        for way in WATCHED
        if way in samples
    ]
    title = "Latency of Weir with ledger, scrapes and pages, as a multiple of Weir's without"
    return [Grid(title, ("load", "way", *_NAMES.values()), rows)] if rows else []


def markdown(results: dict[Level, OpenSamples], absent: dict[str, str], grids_: Sequence[Grid], turn: float, day: str) -> str:
    names = next(iter(results.values()))
    rounds = len(next(iter(names.values())))
    ways = "".join(f"- `{name}`: {WAYS[name].description()}\n" for name in names)
    missing = "".join(f"- `{name}`: {why}\n" for name, why in absent.items())
    return (
        f"# Latency in an open loop, {day}\n\nMade by `python -m loadtest.bench --latency`. Produce requests of "
        f"{size_name(LATENCY_SIZE)} are due by a Poisson process, on {OpenLoop.connections} connections in turn. A latency "
        "counts from the due time, not from the sending. The proxies have one processor, and the load has the other. The load "
        "is the broker as well, and polls without sleeping. Its lag is the time from the due time to the sending. The proxies "
        "have real-time priority, if the bench may give it. Requests that are due while another process has the load's "
        "processor do not count; `disturbed` is their share. A share of "
        f"one processor is that of the dearest proxy. The ways take turns of {turn:g} s in {rounds} rounds, every other round "
        "backwards. `added` is above the direct connection of the same round. Ratios are those of medians, with intervals of "
        "95 % confidence from a bootstrap over rounds. Absolute figures are valid only for this machine "
        f"({machine()}).\n\n{ways}{missing}\n" + "\n".join(grid.markdown() for grid in grids_)
    )


def raw(results: dict[Level, OpenSamples]) -> dict[str, Any]:
    """Every sample, for further analysis."""
    return {
        "machine": machine(),
        "levels": [
            {**asdict(level), "samples": {name: [asdict(sample) for sample in taken] for name, taken in samples.items()}}
            for level, samples in results.items()
        ],
    }
