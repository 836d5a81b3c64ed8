"""The outcomes of mutants: kept between runs, and summed up as scores."""

import json
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any, Final

from loadtest.mutation_testing.areas import Area
from loadtest.mutation_testing.mutants import Mutant

JOURNALS: Final = Path("build/mutants")
_EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
_FOUND: Final = ("killed", "timed out")
_UNRATED: Final = ("equivalent", "at import", "not tried")
"""An interrupted run leaves mutants that are not tried, or that still need a new import."""


def equivalent() -> dict[str, dict[str, str]]:
    """By module and key: the reason why a mutant behaves as the original does."""
    return tomllib.loads(_EQUIVALENT.read_text())


class Journal:
    """The outcomes of one area. `tests` is a digest of its tests: a mutant that survived other tests is tried again."""

    def __init__(self, area: str, tests: str, *, fresh: bool) -> None:
        self._path = JOURNALS / f"{area}.jsonl"
        self._tests = tests
        if fresh:
            self._path.unlink(missing_ok=True)
        self._outcomes: dict[tuple[str, str], tuple[str, str]] = {}
        self.read()

    def read(self) -> None:
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                each = json.loads(line)
                self._outcomes[each["module"], each["mutant"]] = each["outcome"], each["tests"]

    def note(self, module: str, mutant: Mutant, outcome: str) -> None:
        self._outcomes[module, mutant.key] = outcome, self._tests
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"module": module, "mutant": mutant.key, "outcome": outcome, "tests": self._tests}) + "\n")

    def due(self, module: str, mutants: Iterable[Mutant]) -> list[Mutant]:
        known = equivalent().get(module, {})
        return [each for each in mutants if each.key not in known and not self._is_settled(module, each)]

    def _is_settled(self, module: str, mutant: Mutant) -> bool:
        outcome, tests = self._outcomes.get((module, mutant.key), ("", ""))
        return outcome in _FOUND or (outcome in ("survived", "untested") and tests == self._tests)

    def outcome(self, module: str, mutant: Mutant) -> str:
        return self._outcomes.get((module, mutant.key), ("not tried", ""))[0]


def _counts(module: str, mutants: list[Mutant], journal: Journal) -> Counter[str]:
    known = equivalent().get(module, {})
    return Counter("equivalent" if each.key in known else journal.outcome(module, each) for each in mutants)


def _score(counts: Counter[str]) -> float:
    """The part of the mutants that tests found, of those that were tried and are not equivalent."""
    rated = _rated(counts)
    return 1.0 if rated == 0 else sum(counts[each] for each in _FOUND) / rated


def _rated(counts: Counter[str]) -> int:
    return counts.total() - sum(counts[each] for each in _UNRATED)


def _interval(score: float, rated: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for the score of all mutants, from that of a sample."""
    z = 1.96
    middle = (score + z * z / (2 * rated)) / (1 + z * z / rated)
    half = z / (1 + z * z / rated) * sqrt(score * (1 - score) / rated + z * z / (4 * rated * rated))
    return middle - half, middle + half


def summary(area: str, mutants: dict[str, list[Mutant]], journal: Journal, *, survivors: bool) -> Iterator[str]:
    total: Counter[str] = Counter()
    for module, each in mutants.items():
        counts = _counts(module, each, journal)
        total += counts
        yield f"{module}: {_shown(counts)}"
        if survivors:
            known = equivalent().get(module, {})
            for mutant in each:
                outcome = journal.outcome(module, mutant)
                if outcome not in _FOUND and mutant.key not in known:
                    yield f"  {mutant.line} {outcome}: {mutant.key}"
            yield from (f"  unknown in equivalent.toml: {key}" for key in known.keys() - {mutant.key for mutant in each})
    yield f"{area}: {_shown(total)}"


def _shown(counts: Counter[str]) -> str:
    score = f"{_score(counts):.1%}" if _rated(counts) else "no mutant was tried"
    return f"{score} of {counts.total()} ({_text(counts)})"


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def write_results(path: Path, tried: list[tuple[Area, dict[str, list[Mutant]], Journal]], *, part: float, seed: int) -> None:
    """Write the figures of these areas. Other areas in the file stay."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    for area, mutants, journal in tried:
        by_module = {module: _counts(module, each, journal) for module, each in mutants.items()}
        total = sum(by_module.values(), Counter[str]())
        sample = {"part": part, "seed": seed, "date": datetime.now(UTC).date().isoformat(), "commit": commit}
        figures = _figures(total)
        if part < 1.0:
            figures["interval"] = [round(bound, 4) for bound in _interval(_score(total), _rated(total))]
        modules = {module: _figures(counts) for module, counts in by_module.items()}
        found[area.name if seed == 0 else f"{area.name}, seed {seed}"] = sample | figures | {"modules": modules}
    path.write_text(json.dumps(found, indent=1) + "\n")


def _figures(counts: Counter[str]) -> dict[str, Any]:
    return {"mutants": counts.total(), **dict(sorted(counts.items())), "score": round(_score(counts), 4)}
