"""The figures of a whole run, and their report."""

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from loadtest.bench.report import Grid, machine
from loadtest.scenarios.replays import readers
from loadtest.scenarios.replays.experiment import CAPACITY, LANE, LANE_RATE, MAX_LAG, REST, Experiment
from loadtest.scenarios.replays.latency import ALONE, BESIDE, ELSEWHERE, UNDIVIDED, Classes, Latency, Phase
from loadtest.scenarios.replays.readers import Replayed

KINDS = (ALONE, ELSEWHERE, BESIDE)


@dataclass(frozen=True)
class Lane:
    """`rightly` is the part of all bytes that was charged to the right group, `use` the replays' rate by the lane's ceiling.

    `looks` counts looks at tail readers' connections, `in_lane` those in the lane. `at_end` has the groups of the replays'
    connections after they caught up.
    """

    received: Classes
    charged: Classes
    rightly: float
    use: float
    looks: int
    in_lane: int
    at_end: dict[str, int]


@dataclass(frozen=True)
class Findings:
    """`ratios` are p99 of a kind by p99 without replays, round by round. `processors` are busy ones, by kind and process.

    `missed` counts records that a tail reader did not get, `troubles` failed records, errors and lost connections.
    """

    latencies: dict[str, Latency]
    ratios: dict[str, list[float]]
    processors: dict[str, dict[str, float]]
    lane: Lane
    missed: int
    troubles: int
    phases: Sequence[Phase]


def lane_findings(on: Experiment, reports: Sequence[Replayed]) -> Lane:
    """Call it once the replays have caught up."""
    charged, tails = on.charged(), on.received([on.tails])
    totals = [on.received([client]) for client in on.replays]
    far = sum(round(total * each.far_behind / each.record_bytes) for total, each in zip(totals, reports, strict=True))
    received = Classes(far, sum(totals) + tails - far)
    # In the last phase, the replays were not in the lane all the time.
    beside = [phase for phase in on.phases if phase.kind == BESIDE]
    full = beside[:-1] or beside
    return Lane(
        received=received,
        charged=charged,
        rightly=round(received.rightly(charged), 5),
        use=round(sum(phase.replayed for phase in full) / sum(phase.seconds for phase in full) / LANE_RATE, 4),
        looks=on.looks.total(),
        in_lane=on.looks[LANE],
        at_end=dict(Counter(group for client_id, _, group in on.connections() if client_id.startswith("replay-"))),
    )


def replayed(on: Experiment) -> list[Replayed]:
    reports = []
    for each in on.replays:
        each.said()  # that it has caught up
        each.command(readers.REPORT)
        reports.append(each.said())
    return reports


def findings(on: Experiment, lane: Lane, troubles: int) -> Findings:
    kinds = {kind: [phase for phase in on.phases if phase.kind == kind] for kind in (*KINDS, UNDIVIDED)}
    each_p99 = {kind: [on.latency(phase).p99 for phase in kinds[kind]] for kind in KINDS}
    return Findings(
        latencies={kind: on.latency(*phases) for kind, phases in kinds.items()},
        ratios={
            kind: [round(mine / alone, 3) for alone, mine in zip(each_p99[ALONE], each_p99[kind], strict=False)]
            for kind in (ELSEWHERE, BESIDE)
        },
        processors={
            kind: {
                name: round(statistics.fmean(phase.processors[name] for phase in phases), 3) for name in phases[0].processors
            }
            for kind, phases in kinds.items()
        },
        lane=lane,
        missed=on.tailed.missed,
        troubles=troubles + on.tailed.failures,
        phases=on.phases,
    )


def report(found: Findings, megabytes: int) -> str:
    """The figures as Markdown."""
    lane = found.lane
    made = (
        f"Ten tail readers read 50 records/s of 200 B each, and three replays read {megabytes:,} MB each. The capacity is"
        f" {CAPACITY // 1_000_000} MB/s, and the lane has a ceiling of {LANE_RATE // 1_000_000} MB/s and `max_lag_records:"
        f" {MAX_LAG}`. The latency with replays at another gateway shows the part of the machine.\n\nMade by"
        f" `python -m loadtest.scenarios.replays` on {datetime.now(UTC).date().isoformat()} ({machine()}, load average"
        f" {os.getloadavg()[1]:.1f} at the end)."
    )
    lines = [
        *(f"- p99 {kind} / p99 {ALONE}, round by round: {_spread(ratios)}." for kind, ratios in found.ratios.items()),
        f"- The replays had {lane.use:.3f} of the lane's ceiling.",
        f"- Rightly classified: {lane.rightly:.2%} of the bytes.",
        f"- Tail readers' connections in the lane: {lane.in_lane} of {lane.looks:,} looks.",
        f"- Groups of the replays' connections after they caught up: {_listed(lane.at_end)}.",
        f"- Lost connections, errors and failed records: {found.troubles}. Records that a tail reader missed: {found.missed}.",
    ]
    tables = [_latencies(found), _bytes(lane)]
    return "\n".join(["# Tail readers beside replays\n", made, "", *(table.markdown() for table in tables), *lines, ""])


def _latencies(found: Findings) -> Grid:
    head = ("phases", "records", "p50", "p90", "p99", "p99.9", "highest", "busy processors", "of these, the gateways'")
    rows: list[tuple[str, ...]] = []
    for kind, each in found.latencies.items():
        busy = found.processors[kind]
        values = (each.p50, each.p90, each.p99, each.p999, each.highest)
        cells = (f"{each.samples:,}", *(f"{value:,.2f}" for value in values))
        rows.append((kind, *cells, f"{sum(busy.values()):.2f}", f"{busy['gateways']:.2f}"))
    alone = found.latencies[ALONE]
    for kind in (ELSEWHERE, BESIDE):
        mine = found.latencies[kind]
        pairs = ((mine.p50, alone.p50), (mine.p90, alone.p90), (mine.p99, alone.p99), (mine.p999, alone.p999))
        rows.append((f"{kind} / {ALONE}", "", *(f"{one / other:.3f}" for one, other in pairs), "", "", ""))
    return Grid("From produce to consume, in milliseconds", head, rows)


def _bytes(lane: Lane) -> Grid:
    rows: list[tuple[str, ...]] = [
        (name, f"{received:,}", f"{charged:,}", f"{charged - received:+,}")
        for name, received, charged in (
            (f"received far behind / charged to `{LANE}`", lane.received.far_behind, lane.charged.far_behind),
            (f"other bytes / charged to `{REST}`", lane.received.others, lane.charged.others),
        )
    ]
    return Grid("Bytes of Fetch responses", ("class / group", "received", "charged", "difference"), rows)


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles([*ratios, *ratios], n=4)
    return f"median {middle:.3f}, middle half {low:.3f} to {high:.3f}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} in `{name}`" for name, count in counts.items())
