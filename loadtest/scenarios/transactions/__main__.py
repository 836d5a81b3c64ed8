"""Runs transactions with faults, direct and through two throttling gateways, and checks the histories for anomalies.

python -m loadtest.scenarios.transactions --seeds 5
python -m loadtest.scenarios.transactions --defect dropped-produce     # the checker has to find a planted defect
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from loadtest.scenarios.transactions.checker import ALLOWED
from loadtest.scenarios.transactions.defects import DEFECTS, DefectiveGateway
from loadtest.scenarios.transactions.run import CLUSTER, Report, run
from loadtest.scenarios.transactions.summary import WAYS, add_report, markdown, only_through_weir
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, ToolError
from loadtest.testkit.paths import RESULTS

RESULT_FILE = RESULTS / "transactions.json"
SHORTEST_SECONDS = 10


def run_pair(
    cluster: KafkaCluster, directory: Path, seed: int, seconds: float, gateway: type[GatewayProcess], out: Path
) -> list[str]:
    """Both ways, in turn the one or the other first. Returns the classes of anomalies that only runs through Weir have."""
    rows = []
    for way in WAYS if seed % 2 == 0 else WAYS[::-1]:
        report, anomalies = run(cluster, directory / way, seed, seconds, gateway if way == "weir" else None)
        text = "".join(f"{anomaly.kind.value}: {anomaly.detail}\n" for anomaly in anomalies)
        (directory / way / "anomalies.txt").write_text(text)
        show(report)
        rows = add_report(out, report)
    out.with_suffix(".md").write_text(markdown(rows))
    return only_through_weir(rows)


def run_defect(cluster: KafkaCluster, directory: Path, name: str, seed: int, seconds: float) -> bool:
    """True if the checker finds an anomaly with this defect in both gateways."""
    report, anomalies = run(cluster, directory / name, seed, seconds, partial(DefectiveGateway, defect=name))
    show(report)
    return any(anomaly.kind not in ALLOWED for anomaly in anomalies)


def show(report: Report) -> None:
    print(f"seed {report.seed} {report.via}: {report.seconds:.0f} s, {report.operations}, faults {report.faults}")
    print(f"  {report.client_errors} errors of clients, throttled {report.throttled_part}")
    print(f"  anomalies {report.anomalies or 'none'} {report.examples}", flush=True)


def main() -> int:
    """Returns 1 if a class of anomalies exists only through Weir, a planted defect is not found, or a run has no result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    options.add_argument("--seeds", type=_positive, default=1, metavar="N", help="pairs of runs (default: 1)")
    options.add_argument("--seconds", type=_seconds, default=75.0, metavar="S", help="length of a run (default: %(default)s)")
    options.add_argument("--defect", choices=DEFECTS, help="plant this defect in both gateways, and run only through them")
    options.add_argument("--interpreted", action="store_true", help="run the gateways from the sources, not compiled")
    options.add_argument("--directory", type=Path, help="keep the histories and logs in this folder")
    options.add_argument("--out", type=Path, default=RESULT_FILE, help="file for the figures (default: %(default)s)")
    chosen = options.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    gateway = GatewayProcess if chosen.interpreted else CompiledGateway
    failures, only_weir = 0, list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.directory or Path(name)
        try:
            with KafkaCluster(Path(name) / "kafka", 3, CLUSTER) as cluster:
                for seed in range(chosen.first, chosen.first + chosen.seeds):
                    directory = folder / f"seed-{seed}"
                    if chosen.defect:
                        failures += not run_defect(cluster, directory, chosen.defect, seed, chosen.seconds)
                    else:
                        only_weir = run_pair(cluster, directory, seed, chosen.seconds, gateway, chosen.out)
        except (ToolError, NodeError, JarsMissingError, GatewayError, KafkaException, TimeoutError) as error:
            print(f"the series ends without a result: {error}", file=sys.stderr)
            return 1
    if chosen.defect:
        print(f"{chosen.defect}: {'not found' if failures else 'found'}")
    else:
        print(f"classes of anomalies only through Weir: {', '.join(only_weir) or 'none'}")
    return 1 if failures or only_weir else 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of pairs: write 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_SECONDS <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of a run: write {SHORTEST_SECONDS} or more seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
