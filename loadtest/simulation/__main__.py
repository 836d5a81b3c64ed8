"""Runs many seeds of the simulation, and reports each violation with a smaller plan: `make simulate SEEDS=1000`.

`--seed N` replays one seed, and prints every delivery and every log line of the gateways. SIGTERM and Ctrl-C end a series with
its figures. With `--progress`, a later call goes on behind the batches that the file has.
"""

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path

from loadtest.simulation.run import Run
from loadtest.simulation.series import Series, plan_text
from loadtest.simulation.styles import plan_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_positive, default=200, metavar="N", help="run N seeds (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="begin with this seed (default: 0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="replay one seed, with a log of all events")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="S", help="begin no further batch after S seconds"
    )
    parser.add_argument("--no-shrink", action="store_true", help="report failing plans as they are")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=_positive, default=cores, metavar="N", help="run N processes (default: one a core)")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="write a JSON line for each batch, and skip those it has")
    options = parser.parse_args()
    logging.disable(logging.NOTSET)
    if options.seed is not None:
        return _replay(options.seed)
    seeds = range(options.first, options.first + options.seeds)
    try:
        series = Series(seeds, options.workers, options.progress, shrinks=not options.no_shrink)
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"--progress {options.progress} can't be used: {error!r} — name another file, or remove the damaged line")
    return _run_many(series, options.seconds)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number: write 1 or more")
    return int(text)


def _replay(seed: int) -> int:
    plan = plan_of(seed)
    outcome = Run(plan, log=True).execute()
    print(plan_text(plan))
    print("\n".join(outcome.log))
    print(f"seed {seed}: transcript {outcome.transcript}, {outcome.requests} requests, {outcome.turns} turns of the event loop")
    for violation in outcome.violations:
        print(f"VIOLATION at {violation}")
    return 1 if outcome.violations else 0


def _run_many(series: Series, seconds: float) -> int:
    began, done = time.monotonic(), series.done
    if done:
        print(f"{sum(batch.seeds for batch in done)} seeds are done already", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        series.run(seconds)
    except KeyboardInterrupt:
        print("stopped")
    except ChildProcessError as error:
        print(f"{error}: run it again with --progress to go on behind the other batches", flush=True)
        return 2
    seeds, failed = sum(batch.seeds for batch in done), sum(len(batch.failures) for batch in done)
    requests, cpu = sum(batch.requests for batch in done), sum(batch.cpu_seconds for batch in done)
    print(
        f"{seeds} seeds, {requests} requests, {failed} failing, {time.monotonic() - began:.0f} s,"
        f" {cpu:.0f} s of CPU, {1000.0 * cpu / max(seeds, 1):.1f} ms a seed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
