"""`python -m loadtest.scenarios.evenness`: Kafka's performance tools, unpaced, under the broker's quota and under Weir's.

All three ways of a scenario run at the same time with one broker, so that noise affects all of them alike.
"""

import argparse
import json
import math
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadtest.bench.report import Grid, machine
from loadtest.scenarios.evenness.chart import chart
from loadtest.scenarios.evenness.figures import SETTLE_SECONDS, Figures, TooShortError, begun, figures, per_second
from loadtest.scenarios.evenness.scenarios import BATCHES, BROKER, FETCH, KIB, MIB, PRODUCE, WAYS, WEIR, Scenario, runs
from loadtest.scenarios.evenness.sockets import InstrumentMissingError
from loadtest.scenarios.evenness.stage import Stage, Watched
from loadtest.testkit.gateway_process import GatewayError
from loadtest.testkit.kafka import JarsMissingError, NodeError, ToolError
from loadtest.testkit.paths import RESULTS, RUN

_FULL_SECONDS = 90.0
_SPARE_SECONDS = 15.0
"""Clients have work for this many more seconds than measured, since one of four may be faster than its share."""
_BURST_SECONDS = 10.0
_CHARTS = {
    "evenness.svg": (Scenario(PRODUCE, 1, MIB), "One unpaced producer with a quota of 1 MiB/s: bytes per second"),
    "evenness-consumer.svg": (Scenario(FETCH, 1, MIB), "One unpaced consumer with a quota of 1 MiB/s: bytes per second"),
}


@dataclass(frozen=True)
class Outcome:
    """A run's figures, its bytes/s for each second, its clients' throttle-time metrics in ms, and their errors."""

    scenario: Scenario
    way: str
    figures: Figures
    rates: list[float]
    throttle_avg: list[float]
    throttle_max: list[float]
    connections: int
    warnings: list[str]


def main() -> int:
    """Run the batches, print and write the results; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.evenness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=_FULL_SECONDS, help="measured time of each run (default: 90)")
    parser.add_argument("--batches", default="1,2,3", help="1 (single clients), 2 (four producers), 3 (four consumers)")
    parser.add_argument("--out", type=Path, help="folder for evenness.md, .json and .svg (a full run: loadtest/results)")
    parser.add_argument("--redraw", action="store_true", help="run nothing; draw the charts of --out or loadtest/results again")
    options = parser.parse_args()
    if options.redraw:
        _redraw(options.out or RESULTS)
        return 0
    try:
        batches = [BATCHES[int(number) - 1] for number in options.batches.split(",")]
    except (ValueError, IndexError):
        parser.error(f"--batches {options.batches}: give one or more of 1, 2 and 3, such as 1,3")
    if options.seconds < SETTLE_SECONDS + 5:
        parser.error(f"--seconds {options.seconds:g}: the first {SETTLE_SECONDS:.0f} s are not measured; give more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        outcomes = _play(batches, options.seconds)
    except (JarsMissingError, NodeError, GatewayError, ToolError, InstrumentMissingError) as error:
        print(f"evenness: {error}", file=sys.stderr)
        return 1
    report = _report(outcomes, options.seconds)
    print(report)
    full = len(set(batches)) == len(BATCHES) and options.seconds >= _FULL_SECONDS
    out: Path | None = options.out or (RESULTS if full else None)
    if out is not None:
        _write(out, outcomes, report, options.seconds)
    return 0


def _write(out: Path, outcomes: Sequence[Outcome], report: str, seconds: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "evenness.md").write_text(report)
    raw = {"machine": machine(), "outcomes": [asdict(outcome) for outcome in outcomes]}
    (out / "evenness.json").write_text(json.dumps(raw) + "\n")
    print(f"written: {out}/evenness.md, .json")
    _draw(out, outcomes, seconds)


def _play(batches: Sequence[Sequence[Scenario]], seconds: float) -> list[Outcome]:
    outcomes = []
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="evenness-", dir=RUN) as name, ExitStack() as stack:
        print("evenness: starting Kafka and two gateways ...", flush=True)
        stage = Stage(stack, Path(name), [run for batch in batches for run in runs(batch)])
        if any(scenario.api == FETCH for batch in batches for scenario in batch):
            stage.fill(int((seconds + _SPARE_SECONDS + _BURST_SECONDS) * MIB * 1.1))
        for number, batch in enumerate(batches, 1):
            print(f"evenness: batch {number} of {len(batches)}: {'; '.join(map(str, batch))} ...", flush=True)
            for watched in stage.play(runs(batch), seconds, _SPARE_SECONDS):
                outcome = _outcome(watched, seconds)
                if outcome:
                    outcomes.append(outcome)
                    print(f"  {outcome.scenario}, {outcome.way}: {outcome.figures}", flush=True)
    return outcomes


def _outcome(watched: Watched, seconds: float) -> Outcome | None:
    scenario = watched.run.scenario
    try:
        found = figures(watched.series, scenario.quota, seconds)
        rates = per_second(begun(watched.series, scenario.quota), seconds)
    except TooShortError as error:
        print(f"  {scenario}, {watched.run.way}: {error}: {watched.warnings[:3]}", flush=True)
        return None
    return Outcome(
        scenario,
        watched.run.way,
        found,
        rates,
        watched.throttle_avg,
        watched.throttle_max,
        watched.connections,
        watched.warnings,
    )


def _report(outcomes: Sequence[Outcome], seconds: float) -> str:
    head = ("scenario", "held by", "mean / quota", "deviation / quota", "seconds under 10 %", "empty seconds", "longest gap",
            "throttle time avg", "max", "warnings")  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for outcome in sorted(outcomes, key=_order):
        found = outcome.figures
        rows.append(
            (
                str(outcome.scenario),
                outcome.way,
                f"{found.mean:.3f}",
                f"{found.deviation:.3f}",
                f"{found.starved} of {found.seconds}",
                str(found.empty),
                f"{found.gap:.1f} s",
                _milliseconds(outcome.throttle_avg),
                _milliseconds(outcome.throttle_max),
                str(len(outcome.warnings)),
            )
        )
    about = (
        "The clients are Kafka's own ProducerPerformance and ConsumerPerformance (4.3.0), unpaced, with default settings and "
        "records of 1 KiB. The clients of a scenario share one quota. `broker` is the broker's own quota without Weir; `weir` "
        "is the default algorithm (token bucket); `weir window` is Kafka's (`algorithm: window`). All run at the same time "
        "with the same broker. A producer's bytes are those in its topic's log on the broker's disk. A consumer's bytes are "
        "those that the kernel has received on its connections (TCP_INFO). Samples are taken four times a second, over "
        f"{seconds:.0f} s from a run's first bytes. The figures leave out the burst in the first {SETTLE_SECONDS:.0f} s. "
        "Deviation is the standard deviation of a second's rate. A second is empty with less than 2 % of the quota. Throttle "
        "times are the clients' own metrics; ? means that a client did not end in time. Warnings are the lines that the "
        "clients logged, such as a timeout or a disconnect.\n\n"
        f"Made by `python -m loadtest.scenarios.evenness` on {datetime.now(UTC).date().isoformat()} ({machine()})."
    )
    return f"# Evenness\n\n{about}\n\n" + Grid("Against the quota", head, rows).markdown()


def _order(outcome: Outcome) -> tuple[int, int, int, int]:
    scenario = outcome.scenario
    return scenario.api == FETCH, -scenario.quota, scenario.clients, WAYS.index(outcome.way)


def _milliseconds(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{max(known):,.0f} ms" if known else "?"


def _draw(out: Path, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Write a chart of each scenario of `_CHARTS` that ran both ways."""
    for name, (chosen, title) in _CHARTS.items():
        rates = {outcome.way: outcome.rates for outcome in outcomes if outcome.scenario == chosen}
        if {BROKER, WEIR} <= rates.keys():
            panels = {"The broker's own quota": rates[BROKER], "Weir": rates[WEIR]}
            (out / name).write_text(chart(title, panels, MIB, ("KiB/s", KIB), int(seconds)))
            print(f"written: {out}/{name}")


def _redraw(folder: Path) -> None:
    """Draw the charts again from the figures of an earlier run."""
    stored = json.loads((folder / "evenness.json").read_text())["outcomes"]
    outcomes = [
        Outcome(**{**one, "scenario": Scenario(**one["scenario"]), "figures": Figures(**one["figures"])}) for one in stored
    ]
    _draw(folder, outcomes, max(len(outcome.rates) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
