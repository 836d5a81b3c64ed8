"""Runs a compiled gateway for hours among faults, with clients that come and go, and checks it for leaks and lost counts.

python -m loadtest.scenarios.soak --minutes 120 --work DIR
python -m loadtest.scenarios.soak --read --work DIR     # a run that has ended, or goes on
"""

import argparse
import sys
from pathlib import Path

from confluent_kafka import KafkaException

from loadtest.scenarios.soak.disturbances import DisturbanceError
from loadtest.scenarios.soak.evaluation import WARM_UP_SECONDS, as_json, evaluate, events_of
from loadtest.scenarios.soak.observation import read_observed
from loadtest.scenarios.soak.run import Plan, run
from loadtest.scenarios.soak.summary_page import chart, markdown
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, NodeError
from loadtest.testkit.paths import RESULTS


def main() -> int:
    """Returns 1 if a check fails, or if the run has no result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=_positive, default=120.0, metavar="M", help="length of the run (default: 120)")
    options.add_argument("--every", type=_positive, default=120.0, metavar="S", help="seconds between events (default: 120)")
    options.add_argument("--clients", type=_count, default=2000, metavar="N", help="connections (default: 2000)")
    options.add_argument("--seed", type=int, default=1, help="seed of the clients and events (default: 1)")
    options.add_argument("--warm-up", type=_positive, default=WARM_UP_SECONDS / 60, metavar="M",
                         help="minutes of each process that do not count for its memory (default: 20)")  # fmt: skip
    options.add_argument("--interpreted", action="store_true", help="run the gateway from the sources, not compiled")
    options.add_argument("--read", action="store_true", help="evaluate the files in --work, and run nothing")
    options.add_argument("--work", type=Path, required=True, help="new folder for all files of the run")
    options.add_argument("--results", type=Path, default=RESULTS, help="folder for the results (default: %(default)s)")
    chosen = options.parse_args()
    if not chosen.read:
        if chosen.work.exists():
            options.error(f"--work {chosen.work} exists: name a new folder, or evaluate its run with --read")
        plan = Plan(chosen.minutes * 60, chosen.every, chosen.clients, chosen.seed)
        try:
            run(plan, chosen.work, GatewayProcess if chosen.interpreted else CompiledGateway, _tell)
        except (DisturbanceError, NodeError, JarsMissingError, GatewayError, KafkaException, OSError, RuntimeError) as error:
            print(f"soak: the run ends without a result: {error}", file=sys.stderr)
            return 1
    try:
        problems = write_results(chosen.work, chosen.results, chosen.warm_up * 60)
    except OSError as error:
        print(f"soak: {chosen.work} has no run: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(problems) or 'no'} problems; see {chosen.results / 'soak.md'}")
    return 1 if problems else 0


def write_results(work: Path, results: Path, warm_up: float) -> list[str]:
    """Write soak.json, soak.md and soak.svg. Returns the problems; raises OSError."""
    verdict = evaluate(work, warm_up)
    results.mkdir(parents=True, exist_ok=True)
    (results / "soak.json").write_text(as_json(verdict))
    (results / "soak.md").write_text(markdown(verdict))
    (results / "soak.svg").write_text(chart(read_observed(work / "samples.jsonl"), events_of(work)))
    return verdict.problems


def _tell(line: str) -> None:
    print(line, flush=True)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of connections: write 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
