"""Ten tail readers beside three replays that have a lane of their own: `python -m loadtest.scenarios.replays`.

A producer stamps small records, and ten consumers read them at the end of a topic. Three more consumers replay that topic from
its beginning, through the same gateway. Phases without and with the replays alternate until the replays have caught up. In a
third kind of phase, other replays run through a gateway of their own. That shows the part of the machine, which all processes
share. At last, new replays run without a lane, at the same total rate. All clients are librdkafka.

The figures compare the latency from produce to consume, and the bytes of each class. The bytes are the kernel's count of each
replay's connections, and the gateway's charges of its groups. A full run takes six minutes and writes
loadtest/results/replays.*. The rates leave processors idle, so run it on a machine that does nothing else.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.bench.report import machine
from loadtest.scenarios.evenness.sockets import InstrumentMissingError
from loadtest.scenarios.replays.experiment import LANE_RATE, PHASE_SECONDS, REPLAYS, SETTLING_SECONDS, WITHOUT_LANE, Experiment
from loadtest.scenarios.replays.findings import KINDS, Findings, findings, lane_findings, replayed, report
from loadtest.scenarios.replays.latency import ALONE, BESIDE, ELSEWHERE, UNDIVIDED
from loadtest.scenarios.replays.readers import ClientError
from loadtest.testkit.compiled_build import BuildError
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, NodeError, ToolError
from loadtest.testkit.paths import RESULTS, RUN

FULL_MEGABYTES = 1_000
LEAST_MEGABYTES = 200


def run(kind: type[GatewayProcess], megabytes: int) -> Findings:
    """`megabytes` for each replay. Raises ClientError if the replays are slower than their lane."""
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="replays-", dir=RUN) as name, ExitStack() as stack:
        progress(f"starting Kafka, a topic of {megabytes:,} MB, and two gateways ...")
        on = Experiment(stack, Path(name), kind, megabytes)
        # One more than the lane needs, for a machine that is busy.
        rounds = 1 + math.ceil(REPLAYS * megabytes * 1e6 / LANE_RATE / PHASE_SECONDS[BESIDE])
        progress(f"up to {rounds} rounds of {sum(PHASE_SECONDS[each] for each in KINDS):.0f} s")
        on.play(ALONE)
        addresses = {address for _, address, _ in on.connections()}
        while not _play_round(on, rounds):
            pass
        time.sleep(SETTLING_SECONDS)
        reports = replayed(on)
        gone = addresses - {address for _, address, _ in on.connections()}
        lane = lane_findings(on, reports)
        progress("the replays have caught up; now new ones without a lane, at the same rate")
        on.end_replays()
        on.gateway.apply(quotas=WITHOUT_LANE)
        on.play(UNDIVIDED, on.new_replays("again", on.gateway))
        time.sleep(SETTLING_SECONDS)
        on.look_at_tails()
        return findings(on, lane, len(gone) + sum(each.disconnects for each in reports))


def _play_round(on: Experiment, rounds: int) -> bool:
    """Play a phase of each kind. True once the replays have caught up."""
    number = sum(phase.kind == BESIDE for phase in on.phases) + 1
    if number > rounds:
        read = on.received(on.replays) / 1e6
        raise ClientError(f"the replays read only {read:,.0f} MB in {rounds} rounds: run it while the machine is idle")
    on.play(ELSEWHERE, on.others)
    done = on.play(BESIDE, on.replays)
    on.play(ALONE)
    found = [(phase, on.latency(phase)) for phase in on.phases[-len(KINDS) :]]
    parts = [f"{each.p99:.1f} ms {phase.kind} ({phase.replayed / phase.seconds / 1e6:.1f} MB/s)" for phase, each in found]
    progress(f"round {number}: p99 {', '.join(parts)}")
    return done


def progress(text: str) -> None:
    print(f"replays: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.scenarios.replays", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes",
        type=int,
        default=FULL_MEGABYTES,
        help="that each replay reads (default: 1000, six minutes; 200, the least, takes two)",
    )
    parser.add_argument("--out", type=Path, help="folder for replays.md and replays.json (a full run: loadtest/results)")
    parser.add_argument("--interpreted", action="store_true", help="run this checkout, not the compiled build")
    options = parser.parse_args()
    if options.megabytes < LEAST_MEGABYTES:
        parser.error(f"--megabytes {options.megabytes}: too few for a replay to be far behind; give {LEAST_MEGABYTES} or more")
    try:
        found = run(GatewayProcess if options.interpreted else CompiledGateway, options.megabytes)
    except (BuildError, ClientError, GatewayError, InstrumentMissingError, JarsMissingError, NodeError, ToolError) as error:
        print(f"replays: {error}", file=sys.stderr)
        return 1
    text = report(found, options.megabytes)
    print(f"\n{text}")
    out: Path | None = options.out or (RESULTS if options.megabytes >= FULL_MEGABYTES else None)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "replays.md").write_text(text)
        raw: dict[str, Any] = {"machine": machine(), **asdict(found)}
        (out / "replays.json").write_text(json.dumps(raw, indent=1) + "\n")
        progress(f"written: {out}/replays.md, .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
