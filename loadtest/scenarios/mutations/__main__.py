"""`python -m loadtest.scenarios.mutations`: compares the broker's controller_mutation_rate with Weir's.

A raw client runs a script of scenarios on both sides. Then Kafka's Java admin client creates more partitions than the quota
allows, on both sides, and retries by itself.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadtest.bench.report import machine
from loadtest.scenarios.mutations.comparison import JAVA, JAVA_RATE, TOLERANCE, Stage, Step, compare, rejected
from loadtest.scenarios.mutations.script import RATE, SAMPLES
from loadtest.testkit.gateway_process import GatewayError
from loadtest.testkit.kafka import JarsMissingError, NodeError, ToolError, run_tool
from loadtest.testkit.paths import RESULTS

RESULT_FILE = RESULTS / "mutations.md"
RETRYING_ADMIN = Path(__file__).with_name("RetryingAdmin.java")

RETRIES = (
    ("two topics of 30 partitions in one call", {"a": 30, "b": 30}),
    ("60 partitions, and 1 more in the same call", {"a": 60, "b": 1}),
)


@dataclass(frozen=True)
class Retry:
    """The Java client's task, its duration in seconds on each side, and the duration that the token bucket predicts."""

    what: str
    broker: float
    weir: float
    expected: float

    @property
    def kept(self) -> bool:
        """True if Weir's duration is within a tenth of the prediction."""
        return abs(self.weir / self.expected - 1) <= TOLERANCE


def main() -> int:
    """Run the comparison, print and write the results; returns 1 if the two sides differ."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.mutations", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT_FILE, help="file for the results (default: %(default)s)")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="weir-mutations-") as directory, ExitStack() as stack:
            stage = Stage(stack, Path(directory))
            steps = compare(stage.broker, stage.weir)
            retries = [_retry(stage, number) for number in range(len(RETRIES))]
    except (JarsMissingError, NodeError, GatewayError, ToolError, OSError) as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 2
    text = "\n".join(report(steps, retries)) + "\n"
    print(text)
    options.out.write_text(text)
    return 0 if all(step.same_topics and step.same_time for step in steps) and all(retry.kept for retry in retries) else 1


def _retry(stage: Stage, number: int) -> Retry:
    what, topics = RETRIES[number]
    seconds = []
    for address, side in ((stage.broker, "broker"), (stage.weir, "weir")):
        client = f"{side}-{JAVA}-{number}"
        rows = [f"{client}-{name}={count}" for name, count in topics.items()]
        seconds.append(int(run_tool(RETRYING_ADMIN, address, client, *rows).split()[-1]) / 1000)
    first = next(iter(topics.values()))
    return Retry(what, seconds[0], seconds[1], (first - JAVA_RATE * SAMPLES) / JAVA_RATE)


def report(steps: Sequence[Step], retries: Sequence[Retry]) -> Iterator[str]:
    """The results as Markdown."""
    furthest = max((abs(step.difference) for step in steps), default=0.0)
    yield "# Controller mutation quotas: the broker's own and Weir's"
    yield ""
    yield f"Made by `python -m loadtest.scenarios.mutations` on {datetime.now(UTC):%Y-%m-%d} ({machine()})."
    yield f"Quota {RATE:g} partitions/s, {SAMPLES} samples of 1 s: a burst of {RATE * SAMPLES:g}."
    yield "The numbers behind topics are Kafka's error codes; 89 is THROTTLING_QUOTA_EXCEEDED."
    yield "Difference: the part by which Weir's throttle time ends later, counted from the scenario's first answer."
    yield ""
    yield f"Steps: {len(steps)}. Same errors and messages: {sum(step.same_topics for step in steps)}."
    yield f"Throttled alike within {TOLERANCE:.0%}: {sum(step.same_time for step in steps)}; furthest apart: {furthest:.1%}."
    yield ""
    yield "| scenario | step | broker: errors | Weir: errors | refused | broker: throttle ms | Weir: throttle ms | difference |"
    yield "|---|---|---|---|---|---|---|---|"
    for step in steps:
        errors = [
            ", ".join(f"{name or '-'} {error}" for name, error, _ in each) for each in (step.broker_errors, step.weir_errors)
        ]
        yield (
            f"| {step.scenario} | {step.number} | {errors[0]} | {'the same' if errors[0] == errors[1] else errors[1]}"
            f" | {rejected(step.broker)} / {rejected(step.weir)}"
            f" | {step.broker.throttle_time_ms} | {step.weir.throttle_time_ms} | {step.difference:+.1%} |"
        )
    yield ""
    yield f"Kafka's Java admin client with {JAVA_RATE:g} partitions/s, which retries by itself until everything is created:"
    yield ""
    yield "| created | bucket says | broker | Weir |"
    yield "|---|---|---|---|"
    for retry in retries:
        yield f"| {retry.what} | {retry.expected:.1f} s | {retry.broker:.2f} s | {retry.weir:.2f} s |"


if __name__ == "__main__":
    sys.exit(main())
