"""Mutation testing: the mutants of a source, their way into imported functions, and the score."""

import sys
from collections import Counter
from importlib import util
from pathlib import Path

import pytest

from loadtest.mutation_testing.areas import AREAS, Area
from loadtest.mutation_testing.code_swap import CodeSwap
from loadtest.mutation_testing.mutants import mutants_of
from loadtest.mutation_testing.outcomes import _interval, _score, _shown, equivalent

SOURCE = '''"""A module."""

LIMITS = {"a": 1}


class Gate:
    __slots__ = ("_most",)

    def __init__(self, most: int | None) -> None:
        self._most = most

    @property
    def most(self) -> int | None:
        return self._most or 0

    def open(self, waiting: int) -> bool:
        if waiting < LIMITS["a"]:
            print("open")
            return True
        raise ValueError("too many")
'''


def keys():
    return {mutant.key for mutant in mutants_of(SOURCE)}


@pytest.mark.parametrize(
    "key",
    [
        'LIMITS = {"a": 1} -> LIMITS = {}',
        'LIMITS = {"a": 1} -> LIMITS = {"a": 2}',
        "return self._most or 0 -> return self._most and 0",
        'if waiting < LIMITS["a"]: -> if waiting <= LIMITS["a"]:',
        'if waiting < LIMITS["a"]: -> if not (waiting < LIMITS["a"]):',
        'print("open") -> None',
        "return True -> return False",
    ],
)
def test_small_changes_are_mutants(key):
    assert key in keys()


def test_types_slots_and_wording_stay():
    assert not any("int" in key.replace("print", "") or "slots" in key or "XXtoo many" in key for key in keys())


def test_mutant_of_a_function_gets_into_the_imported_one(tmp_path):
    file = tmp_path / "gate_with_mutants.py"
    file.write_text(SOURCE)
    spec = util.spec_from_file_location("gate_with_mutants", file)
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    gate = module.Gate(5)
    swap = CodeSwap({str(file): SOURCE})
    for mutant in mutants_of(SOURCE):
        found = swap.changed(str(file), mutant.source)
        if "LIMITS =" in mutant.key:
            assert found is None, "a table needs a new import"
        elif "and 0" in mutant.key:
            swap.put(*found)
    assert gate.most == 0


def test_score_leaves_equivalent_mutants_out():
    assert _score(Counter({"killed": 8, "timed out": 1, "survived": 1, "equivalent": 10})) == 0.9
    assert _score(Counter({"equivalent": 1})) == 1.0
    assert _interval(0.9, 100) == pytest.approx((0.826, 0.945), abs=1e-3)


def test_each_equivalent_mutant_has_a_reason():
    for module, found in equivalent().items():
        source = " ".join(line.split("  #")[0] for line in Path(module).read_text().splitlines())
        source = " ".join(source.split())
        for key, reason in found.items():
            assert reason.endswith("."), key
            assert key.split(" -> ")[0] in source, key


def test_score_needs_a_mutant_that_was_tried():
    assert _shown(Counter({"not tried": 3, "equivalent": 1})) == "no mutant was tried of 4 (1 equivalent, 3 not tried)"


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_area_names_only_files_that_exist(area: Area):
    tests_at_import = [test for tests in area.at_import.values() for test in tests]
    named = [*area.modules, *area.tests, *area.at_import, *tests_at_import]
    assert [path for path in named if not Path(path).exists()] == []
