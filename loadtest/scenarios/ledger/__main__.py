"""`python -m loadtest.scenarios.ledger --out PATH`: writes a ledger of any size, on all cores. It is reproducible."""

import argparse
import datetime as dt
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from loadtest.scenarios.ledger.generate import HOUR_MS, population, write_hour


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.ledger", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the ledger's path")
    parser.add_argument("--events", type=int, default=30_000_000, help="total number of lines (30 million)")
    parser.add_argument("--hours", type=int, default=240, help="number of hours (240)")
    parser.add_argument("--entities", type=int, default=5000)
    parser.add_argument("--gateways", type=int, default=2, help="files for each hour")
    parser.add_argument("--start", type=dt.datetime.fromisoformat, default=dt.datetime(2026, 11, 1), help="first hour, UTC")  # noqa: DTZ001
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    start_ms = int(options.start.replace(tzinfo=dt.UTC).timestamp()) * 1000
    people = population(options.entities, options.seed)
    shares = [
        options.events * (hour + 1) // options.hours - options.events * hour // options.hours for hour in range(options.hours)
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        made = [
            pool.submit(write_hour, options.out, people, start_ms + hour * HOUR_MS, share, options.gateways, options.seed)
            for hour, share in enumerate(shares)
        ]
        total = sum(each.result() for each in made)
    print(f"{total:,} events of {options.hours} hours in {options.out}")
    return 0 if total == options.events else 1


if __name__ == "__main__":
    sys.exit(main())
