"""Restarts three gateways under load, one after the other, and reports the effects on clients.

python -m loadtest.scenarios.rolling_restart
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from loadtest.scenarios.rolling_restart.roll import DRAIN_DELAY_SECONDS, LIBRARIES, REPLICAS, Report, run
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RESULTS

RESULT_FILE = RESULTS / "rolling-restart.json"


def table(report: Report) -> str:
    lines = [
        f"{report.restarts} gateways restarted in {report.seconds:.0f} s",
        f"connections: {report.drained} drained, {report.cut} cut, {report.refused} refused",
        f"records acknowledged: {report.acknowledged}, {report.lost} lost, {report.doubled} doubled",
        f"records sent with acks=0: {report.unanswered}, {report.unanswered_lost} lost",
        f"at consumers: {report.missed} missed, {report.again} seen again",
        f"errors: {', '.join(report.errors) or 'none'}",
        "longest seconds without a response:",
        f"{'client':<22}{'before':>8}{'each restart':>20}{'total':>8}",
    ]
    for name, each in report.pauses.items():
        restarts = " ".join(f"{seconds:.2f}" for seconds in each.restarts)
        lines.append(f"{name:<22}{each.before:>8.2f}{restarts:>20}{each.total:>8.2f}")
    return "\n".join(lines)


def main() -> int:
    """Run the scenario; returns 1 if a record was lost or doubled, or a client had an error."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=RESULT_FILE, help="file for the figures (default: %(default)s)")
    options.add_argument("--brokers", type=int, default=1, help="brokers behind the gateways (default: 1)")
    options.add_argument("--workers", type=int, default=1, help="processes of each gateway (default: 1)")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with KafkaCluster(directory / "kafka", chosen.brokers) as cluster:
            report = run(cluster, directory, config={"workers": chosen.workers})
    print(table(report))
    setting = {
        "replicas": REPLICAS,
        "brokers": chosen.brokers,
        "workers": chosen.workers,
        "libraries": LIBRARIES,
        "drain_delay_seconds": round(DRAIN_DELAY_SECONDS, 2),
    }
    chosen.out.write_text(json.dumps({**setting, **asdict(report)}, indent=2) + "\n")
    return 1 if report.lost or report.doubled or report.missed or report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
