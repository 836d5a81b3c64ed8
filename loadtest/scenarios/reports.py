"""Measures the speed of reports: `python -m loadtest.scenarios.reports` reads 30 million events, and then one more hour.

It writes `loadtest/results/reports.{json,md}`. CPU seconds are the sum of Java and Python, so they are also valid on a
machine with other load.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.testkit.paths import RESULTS

START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Cost:
    """The cost of a command and its child processes: wall-clock `seconds`, `cpu_seconds`, and peak memory (MiB)."""

    seconds: float
    cpu_seconds: float
    peak_mib: int
    said: Sequence[str]


def measured(command: Sequence[str]) -> Cost:
    """Run a command and sample its processes twice a second. Raises `CalledProcessError`."""
    began = time.monotonic()
    cpu: dict[int, float] = {}
    peak = 0
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.5):
            seen = _family(process.pid)
            cpu.update({pid: seconds for pid, (seconds, _) in seen.items()})
            peak = max(peak, sum(size for _, size in seen.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, said = process.communicate()
    seconds = time.monotonic() - began
    ended.set()
    watcher.join()
    if process.returncode:
        print(out, said, file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Cost(seconds, sum(cpu.values()), peak >> 20, [line for line in said.splitlines() if " s  " in line])


def _family(ancestor: int) -> Mapping[int, tuple[float, int]]:
    """CPU seconds and resident bytes of a process and its descendants."""
    parents: dict[int, int] = {}
    stats: dict[int, tuple[float, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            values = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        pid = int(entry.name)
        parents[pid] = int(values[1])
        stats[pid] = ((int(values[11]) + int(values[12])) / _TICK, int(values[21]) * _PAGE)
    family = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: stats[pid] for pid in family if pid in stats}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.reports", description=__doc__)
    parser.add_argument("--events", type=int, default=30_000_000)
    parser.add_argument("--hours", type=int, default=240)
    parser.add_argument("--entities", type=int, default=5000)
    parser.add_argument("--memory", default="3g", help="Java's heap (3g)")
    parser.add_argument(
        "--work", type=Path, help="folder for the ledger and the report (default: a temporary folder, deleted at the end)"
    )
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="weir-reports-"))
    ledger, out = work / "ledger", work / "report"
    generate = [sys.executable, "-m", "loadtest.scenarios.ledger", "--out", str(ledger), "--entities", str(options.entities)]
    report = [sys.executable, "-m", "gateway", "report", "--events", str(ledger), "--out", str(out), "--memory", options.memory]
    try:
        if not ledger.exists():
            measured(
                [*generate, "--events", str(options.events), "--hours", str(options.hours), "--start", f"{START:%Y-%m-%d}"]
            )
        size = sum(file.stat().st_size for file in ledger.rglob("*.gz"))
        first = measured(report)
        print(f"first: {first.seconds:.0f} s, {first.cpu_seconds:.0f} s of CPU, {first.peak_mib} MiB", flush=True)
        extra = START + dt.timedelta(hours=options.hours)
        hour = options.events // options.hours
        measured([*generate, "--events", str(hour), "--hours", "1", "--start", f"{extra:%Y-%m-%dT%H:00}"])
        again = measured(report)
        print(f"one more hour: {again.seconds:.0f} s, {again.cpu_seconds:.0f} s of CPU, {again.peak_mib} MiB", flush=True)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    _write(options, size, first, again)
    return 0


def _write(options: argparse.Namespace, size: int, first: Cost, again: Cost) -> None:
    result = {
        "events": options.events,
        "hours": options.hours,
        "entities": options.entities,
        "ledger_bytes": size,
        "cores": os.cpu_count(),
        "heap": options.memory,
        "load_average": os.getloadavg(),
        "first": asdict(first),
        "one_more_hour": asdict(again),
    }
    (RESULTS / "reports.json").write_text(json.dumps(result, indent=1) + "\n")
    rows = [("first run", first, options.events), ("one more hour", again, options.events // options.hours)]
    table = [
        f"| {name} | {events:,} | {cost.seconds:.0f} | {cost.cpu_seconds:.0f} | {events / cost.seconds:,.0f} | "
        f"{events / cost.cpu_seconds:,.0f} | {cost.peak_mib} MiB |\n"
        for name, cost, events in rows
    ]
    load = f"{os.getloadavg()[1]:.1f}"
    page = f"""# {options.events:,} events of {options.hours} hours and {options.entities:,} entities

Made by `python -m loadtest.scenarios.reports` on {os.cpu_count()} cores (load average {load}), with {options.memory} of heap,
from {size >> 20} MiB of gzip. Memory is that of all processes together.

| run | new events | seconds | CPU seconds | events/s | events per CPU second | most memory |
|---|---:|---:|---:|---:|---:|---:|
{"".join(table)}
The second run took {again.seconds / first.seconds:.3f} of the first one's time,
and {again.cpu_seconds / first.cpu_seconds:.3f} of its CPU seconds.
"""
    (RESULTS / "reports.md").write_text(page)


if __name__ == "__main__":
    sys.exit(main())
