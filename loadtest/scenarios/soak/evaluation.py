"""Applies the checks to the files of a run, also during the run."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from loadtest.scenarios.soak.checks import (
    Ledgers,
    Logged,
    Slope,
    charge_problems,
    compare_with_logs,
    descriptor_problems,
    memory_problems,
    memory_slopes,
    read_log,
)
from loadtest.scenarios.soak.journal import read_journal
from loadtest.scenarios.soak.observation import Counters, Observed, read_observed, series

WARM_UP_SECONDS: Final = 20 * 60.0
OWN_UPSTREAM: Final = 6
"""Weir's own clients open connections to brokers as they need them: one for each broker and use."""


@dataclass(frozen=True)
class Verdict:
    """The result of each check. `problems` is empty for a run without a finding. `whole` is False while the run goes on."""

    whole: bool
    figures: dict[str, Any]
    slopes: list[Slope]
    ledgers: Ledgers | None
    logged: Logged
    problems: list[str]


def evaluate(directory: Path, warm_up: float = WARM_UP_SECONDS) -> Verdict:
    """`warm_up` seconds of each process do not count for its memory. Raises OSError if the run has left no samples yet."""
    notes = list(_notes(directory))
    named = {note["name"]: note for note in notes}
    samples = read_observed(directory / "samples.jsonl")
    counters = last_values(samples)
    logged = read_log((directory / "weir" / "weir.log").read_text().splitlines())
    began = named.get("began")
    end = inf if began is None else began["at"] + began["plan"]["seconds"]  # the clients leave, and memory with them
    slopes = memory_slopes([seen for seen in samples if seen.at <= end], warm_up)
    problems = memory_problems(slopes)
    problems += [f"{logged.tracebacks} tracebacks in the log"] * bool(logged.tracebacks)
    problems += [f"unexpected in the log: {line}" for line in logged.unexpected[:20]]
    problems += [f"{name} is {value:g}" for name, value in counters.items() if value and name.startswith(FAILURES)]
    left = named.get("left", {})
    crowd = left.get("crowd") or _last_line(directory / "crowd.jsonl")
    for name in ("stuck", "wrong response", "no connection in time"):
        if crowd.get("counts", {}).get(name):
            problems.append(f"clients counted {crowd['counts'][name]} times: {name}")
    problems += [f"event {note['kind']}: {note['target']}" for note in notes if note["name"] == "failed event"]
    if left.get("exit code"):
        problems.append(f"the clients ended with exit code {left['exit code']}")
    if named.get("stopped", {}).get("exit code"):
        problems.append(f"the gateway ended with exit code {named['stopped']['exit code']}")
    before, after = named.get("empty before"), named.get("empty after")
    if before and after:
        problems += descriptor_problems(_descriptors(before), _descriptors(after), OWN_UPSTREAM)
    ledgers = None
    if "logs" in named:
        journal = list(read_journal(directory / "journal"))
        counted = {topic: counters.get(series("weir_topic_bytes_total", topic=topic), 0.0) for topic in named["logs"]["bytes"]}
        ledgers = compare_with_logs(journal, _stored(directory), counted, named["logs"]["bytes"])
        problems += ledgers.problems
        problems += charge_problems(journal, counters)
    figures = {
        "minutes": round((samples[-1].at - samples[0].at) / 60, 1),
        "plan": named.get("began", {}).get("plan"),
        "events": dict(Counter(note["kind"] for note in notes if note["name"] == "event")),
        "clients": crowd,
        "mutator": left.get("mutator"),
        "gateway": {name: value for name, value in sorted(counters.items()) if name.startswith(TOTALS)},
        "throttled_requests": _sum(counters, "weir_throttled_requests_total"),
        "cpu_seconds": _cpu(samples),
        "descriptors": {"before": before and _descriptors(before), "after": after and _descriptors(after)},
    }
    return Verdict("logs" in named, figures, slopes, ledgers, logged, problems)


FAILURES: Final = ("weir_task_restarts_total", "weir_ledger_dropped_total", "weir_protocol_errors_total{reason=internal")
"""Counters that must stay 0."""

TOTALS: Final = (
    "weir_connections_accepted", "weir_requests_total", "weir_protocol_errors", "weir_tls", "weir_config_reloads",
    "weir_worker_restarts", "weir_connections_rejected", "weir_ledger", "weir_volume_source", "weir_task",
)  # fmt: skip


def last_values(samples: list[Observed]) -> Counters:
    """The last value of each gauge, and the highest of each counter: after an unused hour, a sum lacks a worker's part."""
    found = Counters()
    for seen in samples:
        for name, value in seen.counters.items():
            found[name] = max(value, found.get(name, 0.0)) if "_total" in name else value
    return found


def events_of(directory: Path) -> list[tuple[float, str]]:
    """The monotonic time and the target of each event."""
    notes = list(_notes(directory))
    began = next((note["at"] for note in notes if note["name"] == "began"), 0.0)
    return [(began + note["over"], note["target"]) for note in notes if note["name"] == "event"]


def as_json(verdict: Verdict) -> str:
    return json.dumps(asdict(verdict), indent=1) + "\n"


def _sum(counters: Counters, start: str) -> float:
    return sum(value for name, value in counters.items() if name.startswith(start))


def _notes(directory: Path) -> Iterator[dict[str, Any]]:
    for line in (directory / "events.jsonl").read_text().splitlines():
        yield json.loads(line)


def _last_line(path: Path) -> dict[str, Any]:
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found


def _descriptors(note: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {one["role"]: one["descriptors"] for one in note["processes"]}


def _stored(directory: Path) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {}
    for line in (directory / "stored.jsonl").read_text().splitlines():
        entry = json.loads(line)
        numbers = found[entry["topic"]] = Counter(dict.fromkeys(entry["numbers"], 1))
        numbers.update({int(number): count - 1 for number, count in entry["again"].items()})
    return found


def _cpu(samples: list[Observed]) -> dict[str, float]:
    """The CPU seconds of each process, by role."""
    last = {(one.role, one.pid): one.cpu for seen in samples for one in seen.processes}
    found = Counter[str]()
    for (role, _), seconds in last.items():
        found[role] += round(seconds)
    return dict(found)
