"""The summary of all pairs of runs, as JSON and as Markdown."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any, Final

from loadtest.scenarios.transactions.checker import ALLOWED, Kind
from loadtest.scenarios.transactions.run import Report

WAYS: Final = ("direct", "weir")

Rows = list[dict[str, Any]]
"""Reports as in the JSON file."""


def add_report(path: Path, report: Report) -> Rows:
    """Put a report into the JSON file, in place of an earlier one of the same run. Returns all reports."""
    kept: Rows = json.loads(path.read_text())["runs"] if path.exists() else []
    row = asdict(report)
    rows = [each for each in kept if (each["seed"], each["via"]) != (report.seed, report.via)]
    rows = sorted([*rows, row], key=lambda each: (each["seed"], each["via"]))
    path.write_text(json.dumps({"only_through_weir": only_through_weir(rows), "runs": rows}, indent=1) + "\n")
    return rows


def only_through_weir(rows: Rows) -> list[str]:
    """The classes of anomalies that some run through Weir has and no direct run."""
    classes = {way: {kind for row in rows if row["via"] == way for kind in row["anomalies"]} for way in WAYS}
    return sorted(classes["weir"] - classes["direct"])


def markdown(rows: Rows) -> str:
    """Tables of the operations, the faults and the anomalies of both ways."""
    of = {way: [row for row in rows if row["via"] == way] for way in WAYS}
    lines = [
        "# Transactions under faults: direct, and through two throttling gateways",
        "",
        "Made by `python -m loadtest.scenarios.transactions`. Each seed runs once each way, with the same plan of faults.",
        "",
        "| | direct | through Weir |",
        "|---|---|---|",
        _line("runs", [str(len(of[way])) for way in WAYS]),
        _line("seconds of load", [f"{sum(row['seconds'] for row in of[way]):.0f}" for way in WAYS]),
    ]
    for kind in sorted({kind for row in rows for kind in row["operations"]}):
        outcomes = [_outcomes(row["operations"].get(kind, {}) for row in of[way]) for way in WAYS]
        lines.append(_line(f"{kind}: ok, fail, info", outcomes))
    lines.append(_line("records read", [str(sum(row["records_read"] for row in of[way])) for way in WAYS]))
    lines.append(_line("part of the time throttled, mean of clients", [_throttled(of[way]) for way in WAYS]))
    lines += [_line(fault, [str(_sums(of[way], "faults")[fault]) for way in WAYS]) for fault in sorted(_sums(rows, "faults"))]
    lines += ["", "| anomaly | direct | through Weir |", "|---|---|---|"]
    for kind in Kind:
        name = f"{kind.value}, which Kafka permits" if kind in ALLOWED else kind.value
        lines.append(_line(name, [str(_sums(of[way], "anomalies")[kind.value]) for way in WAYS]))
    found = ", ".join(only_through_weir(rows)) or "none"
    return "\n".join([*lines, "", f"Classes of anomalies that only runs through Weir have: {found}.", ""])


def _line(name: str, figures: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(figures)} |"


def _sums(rows: Rows, key: str) -> Counter[str]:
    return sum((Counter(row[key]) for row in rows), Counter[str]())


def _outcomes(counts: Iterable[dict[str, int]]) -> str:
    total = sum((Counter(each) for each in counts), Counter[str]())
    return ", ".join(str(total[outcome]) for outcome in ("ok", "fail", "info"))


def _throttled(rows: Rows) -> str:
    return f"{mean(part for row in rows for part in row['throttled_part'].values()):.2f}" if rows else "-"
