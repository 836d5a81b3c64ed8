"""`python -m loadtest.mutation_testing`: plant small defects into quotas, framing and states, and see which ones no test finds.

The outcomes are kept in build/mutants, so that a run goes on after an interruption. A later run tries the mutants again that
survived, once a test of their area has changed.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random

from loadtest.mutation_testing.areas import AREAS, Area
from loadtest.mutation_testing.mutants import Mutant, mutants_of
from loadtest.mutation_testing.outcomes import JOURNALS, Journal, summary, write_results
from loadtest.mutation_testing.trial import AT_IMPORT, UNTESTED, try_area, try_at_import

_PRELOADED = (
    "aiohttp", "aiokafka", "confluent_kafka", "cryptography.x509", "hypothesis.strategies", "kafka.protocol", "numpy",
    "prometheus_client", "pydantic", "pytest_asyncio", "rich.table", "uvloop", "yaml",
)  # fmt: skip
"""Packages that each new import of the gateway needs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.mutation_testing", description=__doc__)
    names = [area.name for area in AREAS]
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"areas to try: {', '.join(names)} (default: all)")
    parser.add_argument(
        "--module", action="append", default=[], metavar="PATH", help="only this module, such as gateway/quotas/line.py"
    )
    parser.add_argument("--part", type=float, default=1.0, help="the part of each module's mutants to try (default: 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of that sample (default: 0)")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes of earlier runs")
    parser.add_argument("--survivors", action="store_true", help="run nothing; print the mutants that survived")
    parser.add_argument("--write", metavar="PATH", help="write the scores of these areas into a JSON file")
    options = parser.parse_args()
    for area in options.areas:
        if area not in names:
            parser.error(f"AREA: there is no {area!r}: use some of {', '.join(names)}")
    for module in options.module:
        if not any(module in area.modules for area in AREAS):
            parser.error(f"--module: {module!r} is in no area: use a path that areas.py lists, such as gateway/quotas/line.py")
    if not 0.0 < options.part <= 1.0:
        parser.error(f"--part: {options.part} is no part of the mutants: give a number above 0 and at most 1")
    tried: list[tuple[Area, dict[str, list[Mutant]], Journal]] = []
    for area in AREAS:
        if options.areas and area.name not in options.areas:
            continue
        modules = [module for module in area.modules if not options.module or module in options.module]
        if not modules:
            continue
        mutants = {module: _sample(module, options.part, options.seed) for module in modules}
        journal = Journal(area.name, _digest(area), fresh=options.fresh and not options.survivors)
        if not options.survivors:
            _try(area, mutants, journal)
        tried.append((area, mutants, journal))
    for area, mutants, journal in tried:
        print("\n".join(summary(area.name, mutants, journal, survivors=options.survivors)))
    if options.write:
        write_results(Path(options.write), tried, part=options.part, seed=options.seed)


def _sample(module: str, part: float, seed: int) -> list[Mutant]:
    """A mutant is in the sample or not, whatever else the module contains."""
    found = mutants_of(Path(module).read_text())
    return [each for each in found if Random(f"{seed} {module} {each.key}").random() < part]


def _digest(area: Area) -> str:
    return sha256(b"".join(file.read_bytes() for file in area.test_files())).hexdigest()


def _try(area: Area, mutants: dict[str, list[Mutant]], journal: Journal) -> None:
    """The area's tests run in a process of their own, so that this process imports no module that gets mutants."""
    due = {module: journal.due(module, each) for module, each in mutants.items()}
    due = {module: each for module, each in due.items() if each}
    total = sum(map(len, due.values()))
    print(f"{area.name}: {total} of {sum(map(len, mutants.values()))} mutants to try", flush=True)
    if not due:
        return
    pid = os.fork()
    if pid == 0:
        try_area(area, due, journal.note, JOURNALS / f"{area.name}-calls.json")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"the tests of {area.name} could not be run")
    journal.read()
    _try_at_import(area, due, journal)


def _try_at_import(area: Area, mutants: dict[str, list[Mutant]], journal: Journal) -> None:
    for name in _PRELOADED:
        import_module(name)
    for module, mutant in _of(mutants):
        if journal.outcome(module, mutant) == AT_IMPORT:
            tests = area.import_tests(module)
            journal.note(module, mutant, try_at_import(tests, module, mutant) if tests else UNTESTED)


def _of(mutants: dict[str, list[Mutant]]) -> Iterator[tuple[str, Mutant]]:
    for module, each in mutants.items():
        for mutant in each:
            yield module, mutant


if __name__ == "__main__":
    main()
