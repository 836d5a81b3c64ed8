"""Runs many seeds of the simulation, and reports each violation with a smaller plan: `make simulate SEEDS=1000`.

`--seed N` replays one seed, and prints every delivery and every log line of the gateways.
"""

import argparse
import gc
import logging
import sys
import time
from dataclasses import fields

from loadtest.simulation.plan import Plan, plan_of
from loadtest.simulation.run import Run
from loadtest.simulation.shrink import shrink

COLLECT_EVERY = 50
"""Runs between two collections of garbage: in between they would cost a quarter of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_positive, default=200, metavar="N", help="run N seeds (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="begin with this seed (default: 0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="replay one seed, with a log of all events")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="start no further run after S seconds")
    parser.add_argument("--no-shrink", action="store_true", help="report failing plans as they are")
    options = parser.parse_args()
    logging.disable(logging.NOTSET)
    if options.seed is not None:
        return _replay(options.seed)
    return _run_many(options.first, options.seeds, options.seconds, shrinks=not options.no_shrink)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs: write 1 or more")
    return int(text)


def _replay(seed: int) -> int:
    plan = plan_of(seed)
    outcome = Run(plan, log=True).execute()
    _print_plan(plan)
    print("\n".join(outcome.log))
    print(f"seed {seed}: transcript {outcome.transcript}, {outcome.requests} requests, {outcome.turns} turns of the event loop")
    for violation in outcome.violations:
        print(f"VIOLATION at {violation}")
    return 1 if outcome.violations else 0


def _run_many(first: int, seeds: int, seconds: float, *, shrinks: bool) -> int:
    """Ctrl-C ends the series, with its figures."""
    began, failed, requests, done, seed = time.monotonic(), 0, 0, 0, first
    gc.disable()
    try:
        for seed in range(first, first + seeds):
            if time.monotonic() - began > seconds:
                break
            plan = plan_of(seed)
            outcome = Run(plan).execute()
            done += 1
            requests += outcome.requests
            if outcome.violations:
                failed += 1
                print(f"seed {seed} fails at {outcome.violations[0]}", flush=True)
                if shrinks:
                    _print_plan(shrink(plan))
                print(f"  replay it: python -m loadtest.simulation --seed {seed}", flush=True)
            if done % COLLECT_EVERY == 0:
                gc.collect()
    except KeyboardInterrupt:
        print(f"stopped in seed {seed}")
    except Exception:
        print(f"seed {seed} stops the simulation itself", flush=True)
        raise
    took = time.monotonic() - began
    print(f"{done} seeds, {requests} requests, {failed} failing, {took:.0f} s, {done / max(took, 0.001):.1f} seeds a second")
    return 1 if failed else 0


def _print_plan(plan: Plan) -> None:
    for each in fields(plan):
        value = getattr(plan, each.name)
        if isinstance(value, tuple):
            print(f"  {each.name}:")
            for row in value:
                print(f"    {row}")
        else:
            print(f"  {each.name}: {value}")


if __name__ == "__main__":
    sys.exit(main())
