"""Measures the speed of reports beside DuckDB: `python -m loadtest.scenarios.reports`.

It reads 30 million events, their first day alone, one more hour, hours that arrive while a process stays, and a ledger of
100 events. The folder `--results` gets `reports.{json,md}`. CPU seconds are those of all processes together, so they mean
something on a machine with other load too.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from loadtest.scenarios.process_costs import Cost, measured
from loadtest.scenarios.staying_report import StayingReport
from loadtest.testkit.paths import RESULTS

START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
_STAYING_HOURS = 5
"""The hours that arrive one after the other while `weir report --every` runs."""


@dataclass(frozen=True)
class Step:
    """One row of the result. `beside` is the cost of DuckDB for the same lines."""

    name: str
    events: int
    cost: Cost
    beside: Cost | None = None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.reports", description=__doc__)
    parser.add_argument("--events", type=int, default=30_000_000)
    parser.add_argument("--hours", type=int, default=240)
    parser.add_argument("--entities", type=int, default=5000)
    parser.add_argument("--memory", default="3g", help="Java's heap (3g)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for reports.json and reports.md")
    parser.add_argument("--without-duckdb", action="store_true", help="run weir report only")
    parser.add_argument(
        "--work", type=Path, help="folder for the ledger and the reports (default: a temporary folder, deleted at the end)"
    )
    options = parser.parse_args()
    if find_spec("duckdb") is None and not options.without_duckdb:
        parser.error("DuckDB is not installed: pip install '.[dev]', or give --without-duckdb")
    work = options.work or Path(tempfile.mkdtemp(prefix="weir-reports-"))
    try:
        ledger = work / "ledger"
        if not ledger.exists():
            _generate(ledger, options.events, options.hours, options.entities, START)
        size = sum(file.stat().st_size for file in ledger.rglob("*.gz"))
        steps = list(_steps(work, options))
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    _write(options, size, steps)
    return 0


def _steps(work: Path, options: argparse.Namespace) -> Iterator[Step]:
    """Run the commands one after the other, and print the cost of each."""
    ledger = work / "ledger"

    def step(name: str, events: int, out: str, *, ledger: Path = ledger, days: int | None = None, beside: bool = False) -> Step:
        last = (START + dt.timedelta(days=(days or 0) - 1)).date()
        period = [] if days is None else ["--to", f"{last}"]
        report = [*_WEIR, "--events", str(ledger), "--out", str(work / out), "--memory", options.memory, *period]
        made = Step(name, events, measured(report))
        if beside and not options.without_duckdb:
            hours = [sys.executable, "-m", "loadtest.scenarios.duckdb_hours", "--out", str(work / f"{out}-duckdb")]
            only = [] if days is None else ["--days", str(days)]
            made = replace(made, beside=measured([*hours, "--events", str(ledger), *only]))
            subprocess.run([*hours, "--check", str(work / out)], check=True)
        print("\n".join(_rows(made)), flush=True)
        return made

    yield step("first run", options.events, "report", beside=True)
    if options.hours > 24:
        yield step("first run, first day only", options.events * 24 // options.hours, "report-day", days=1, beside=True)
    hour = options.events // options.hours
    _generate(ledger, hour, 1, options.entities, _begin(options.hours))
    yield step("one more hour", hour, "report")
    later = [work / f"ledger-{number}" for number in range(1, _STAYING_HOURS + 1)]
    for number, folder in enumerate(later, options.hours + 1):
        _generate(folder, hour, 1, options.entities, _begin(number))
    staying = StayingReport([*_WEIR, "--out", str(work / "report"), "--memory", options.memory], ledger)
    for number, cost in enumerate(staying.costs(later), 1):
        made = Step(f"one more hour, `--every`, run {number}", hour, cost)
        print("\n".join(_rows(made)), flush=True)
        yield made
    _generate(work / "ledger-small", 100, 1, 20, START)
    yield step("100 events", 100, "report-small", ledger=work / "ledger-small")


def _begin(hours: int) -> dt.datetime:
    return START + dt.timedelta(hours=hours)


_WEIR = (sys.executable, "-m", "gateway", "report")


def _generate(path: Path, events: int, hours: int, entities: int, start: dt.datetime) -> None:
    command = [sys.executable, "-m", "loadtest.scenarios.ledger", "--out", str(path), "--entities", str(entities)]
    measured([*command, "--events", str(events), "--hours", str(hours), "--start", f"{start:%Y-%m-%dT%H:00}"])


def _rows(step: Step) -> Sequence[str]:
    costs = [(step.name, step.cost)] + ([(f"{step.name}: DuckDB", step.beside)] if step.beside else [])
    ratio = f"{step.cost.cpu_seconds / step.beside.cpu_seconds:.1f}" if step.beside else ""
    return [
        f"| {name} | {step.events:,} | {cost.seconds:.0f} | {cost.cpu_seconds:.1f} | {cost.peak_mib} MiB | "
        f"{ratio if cost is step.cost else ''} |"
        for name, cost in costs
    ]


def _write(options: argparse.Namespace, size: int, steps: Sequence[Step]) -> None:
    result = {
        "events": options.events,
        "hours": options.hours,
        "entities": options.entities,
        "ledger_bytes": size,
        "cores": os.cpu_count(),
        "heap": options.memory,
        "load_average": os.getloadavg(),
        "steps": [asdict(step) for step in steps],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "reports.json").write_text(json.dumps(result, indent=1) + "\n")
    load = f"{os.getloadavg()[2]:.1f}"
    table = "\n".join(row for step in steps for row in _rows(step))
    page = f"""# {options.events:,} events of {options.hours} hours and {options.entities:,} entities

Made by `python -m loadtest.scenarios.reports` on {os.cpu_count()} cores (load average {load}), with {options.memory} of heap,
from {size >> 20} MiB of gzip. Memory is that of all processes together. The ratio divides the CPU seconds of `weir report` by
those of DuckDB, which makes the same hourly tables from the same files.

| run | new events | seconds | CPU seconds | most memory | ratio |
|---|---:|---:|---:|---:|---:|
{table}
"""
    (options.results / "reports.md").write_text(page)


if __name__ == "__main__":
    sys.exit(main())
