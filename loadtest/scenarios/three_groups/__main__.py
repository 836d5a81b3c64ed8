"""Three groups that start and stop, as one picture: `python -m loadtest.scenarios.three_groups`.

Unpaced producers (librdkafka) of three groups share 8 MB/s at two gateways in front of one broker. A script of 96 s starts and
stops them. The figures are the bytes in the topics' logs. A run takes two minutes and prints the measured rates beside the
computed division. It writes three-groups.json and three-groups.svg.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from gateway.quotas.fair_share import Share, ShareTree
from loadtest.bench.report import Grid, machine
from loadtest.scenarios.fair_share import CAPACITY, SETTLING_SECONDS, Case, Experiment
from loadtest.scenarios.three_groups.stacked_areas import GroupNumbers, Period, Timeline, stacked_areas
from loadtest.testkit.compiled_build import BuildError
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, NodeError
from loadtest.testkit.paths import RESULTS, RUN

MB: Final = 1_000_000
NAME = "three-groups"
TITLE = "Three groups share 8 MB/s at two gateways"
GROUPS = {
    "payments": GroupNumbers(weight=1, guarantee=4.0),
    "search": GroupNumbers(weight=2, ceiling=3.0),
    "batch": GroupNumbers(weight=1),
}
SCRIPT: Sequence[tuple[float, str, Sequence[str]]] = (
    (0, "batch starts", ["batch"]),
    (12, "payments starts", ["payments", "batch"]),
    (26, "search starts", ["payments", "search", "batch"]),
    (40, "payments stops", ["search", "batch"]),
    (54, "batch stops", ["search"]),
    (64, "payments starts", ["payments", "search"]),
    (78, "batch starts", ["payments", "search", "batch"]),
)
"""The second, the event, and the groups that run from then on."""
END_SECONDS = 96
STEP_SECONDS = 1
CHANGE_SECONDS = 2.0
"""The means leave out this time after each event."""


def division(running: Sequence[str]) -> dict[str, float]:
    """The parts that `running` groups should get in MB/s, if each of them wants everything."""
    shares = [Share(ceiling=CAPACITY / MB)]
    for numbers in GROUPS.values():
        ceiling = inf if numbers.ceiling is None else numbers.ceiling
        shares.append(Share(0, numbers.weight, numbers.guarantee or 0.0, ceiling))
    found = ShareTree(shares).divide([0.0, *(inf if name in running else 0.0 for name in GROUPS)])
    return dict(zip(GROUPS, found[1:], strict=True))


def case() -> Case:
    numbers = {name: {key: value for key, value in asdict(own).items() if value} for name, own in GROUPS.items()}
    for own in numbers.values():
        own.update({key: round(own[key] * MB) for key in own.keys() - {"weight"}})
    return Case(NAME, numbers, {}, {})


def play(experiment: Experiment) -> Timeline:
    """Run the script once."""
    begin = time.monotonic()
    periods: list[Period] = []
    for second, event, running in SCRIPT:
        time.sleep(max(0.0, begin + second - time.monotonic()))
        progress(f"{second:3.0f} s: {event}")
        now = time.monotonic() - begin
        if periods:
            periods[-1] = replace(periods[-1], end=round(now, 2))
        periods.append(Period(round(now, 2), END_SECONDS, event, running, division(running), {}))
        experiment.run(running)
    time.sleep(max(0.0, begin + END_SECONDS + 1 - time.monotonic()))

    def rate(name: str, start: float, end: float) -> float:
        return round(experiment.part(name, begin + start, begin + end) * CAPACITY / MB, 3)

    steps = [number * STEP_SECONDS for number in range(END_SECONDS // STEP_SECONDS)]
    rates = {name: [rate(name, step, step + STEP_SECONDS) for step in steps] for name in GROUPS}
    means = [{name: rate(name, period.begin + CHANGE_SECONDS, period.end) for name in GROUPS} for period in periods]
    found = [replace(period, found=mean) for period, mean in zip(periods, means, strict=True)]
    return Timeline(CAPACITY / MB, GROUPS, STEP_SECONDS, rates, found)


def run(kind: type[GatewayProcess]) -> Timeline:
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-", dir=RUN) as name, ExitStack() as stack:
        progress("starting Kafka and two gateways")
        experiment = Experiment(stack, Path(name), kind, case(), list(GROUPS))
        time.sleep(SETTLING_SECONDS)
        return play(experiment)


def table(timeline: Timeline) -> Grid:
    rows: list[tuple[str, ...]] = []
    for period in timeline.periods:
        pairs = [(period.found[name], period.division[name]) for name in timeline.groups]
        cells = [f"{found:.2f} / {part:.2f}" if part else "" for found, part in pairs]
        rows.append((f"{period.begin:.0f} s: {period.event}", *cells, f"{sum(period.found.values()):.2f}"))
    return Grid("Measured / computed, in MB/s, from two seconds after each event on", ("event", *timeline.groups, "all"), rows)


def write(folder: Path, timeline: Timeline, made: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps({"machine": made, **asdict(timeline)}) + "\n")
    (folder / f"{NAME}.svg").write_text(stacked_areas(TITLE, timeline))
    progress(f"written: {folder}/{NAME}.json, .svg")


def read(folder: Path) -> tuple[Timeline, str]:
    """The timeline of an earlier run, and its machine."""
    stored: dict[str, Any] = json.loads((folder / f"{NAME}.json").read_text())
    made = stored.pop("machine")
    groups: Mapping[str, Any] = stored.pop("groups")
    periods = [Period(**period) for period in stored.pop("periods")]
    return Timeline(groups={name: GroupNumbers(**own) for name, own in groups.items()}, periods=periods, **stored), made


def progress(text: str) -> None:
    print(f"three_groups: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.scenarios.three_groups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: loadtest/results)")
    parser.add_argument("--redraw", action="store_true", help="run nothing; draw the figures of --out again")
    parser.add_argument("--interpreted", action="store_true", help="run this checkout, not the compiled build")
    options = parser.parse_args()
    if options.redraw and not (options.out / f"{NAME}.json").exists():
        parser.error(f"--redraw: {options.out}/{NAME}.json is missing; run once without --redraw")
    try:
        if options.redraw:
            timeline, made = read(options.out)
        else:
            timeline, made = run(GatewayProcess if options.interpreted else CompiledGateway), machine()
    except (BuildError, GatewayError, JarsMissingError, NodeError) as error:
        print(f"three_groups: {error}", file=sys.stderr)
        return 1
    print(table(timeline).markdown())
    write(options.out, timeline, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
