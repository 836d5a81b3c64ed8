"""The page "How Weir is tested" has the numbers of the tests."""

import json
import re
from pathlib import Path

from tests.fuzzing.test_fuzzing import CHANGED
from tests.gateway.quotas.test_vectors import DEVIATIONS, NOT_REPLAYED
from tests.loadtest.test_simulation import MUTANT_SEEDS, MUTANTS, SEEDS

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "explanation" / "testing.md").read_text("utf-8").split())


def test_page_has_the_numbers_of_the_vectors() -> None:
    kinds = [case["kind"] for case in json.loads((ROOT / "tests" / "data" / "quota-vectors.json").read_text())]
    replayed = sum(kind not in NOT_REPLAYED for kind in kinds)
    assert f"has {len(kinds)} cases" in PAGE
    assert f"| all | {len(kinds)} | {replayed} |" in PAGE
    assert f"the other {len(kinds) - replayed} cases" in PAGE
    assert ("lists ten steps" in PAGE) == (len(DEVIATIONS) == 10)


def test_page_has_the_numbers_of_the_simulation() -> None:
    assert f"`make test` runs {SEEDS} seeds. It also plants {len(MUTANTS)} defects" in PAGE
    assert f"each defect within {MUTANT_SEEDS} seeds" in PAGE


def test_page_lists_each_fuzz_target() -> None:
    table = PAGE.partition("| target | input | promise |")[2].partition("Time and memory")[0]
    listed = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"\| ((?:`\w+`(?:, )?)+) \|", table))))
    assert listed == {path.stem for path in (ROOT / "tests" / "fuzzing" / "targets").glob("[a-z]*.py")}
    assert f"{CHANGED} random changes" in PAGE
