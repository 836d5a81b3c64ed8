"""JSON in steps: the text of one encoder, without anything that other parsers refuse."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admin.json_text import json_parts
from gateway.steps import at_once

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.dictionaries(st.integers(), inner)
)


def text(value: object) -> str:
    return b"".join(at_once(json_parts(value))).decode()


@dataclass
class Change:
    key: str
    lines: list[int]


@given(VALUES)
@example({"rows": ({"a": 'quotes " and \n'}, 1.5, "text"), "none": None, "flag": True})
@example({})
def test_text_is_that_of_one_encoder(value: object) -> None:
    assert text(value) == json.dumps(value)


def test_dataclasses_are_objects() -> None:
    body = {"a": {"b": {"c": [Change("x", [1])]}}, "change": Change("y", [])}
    wanted = {"a": {"b": {"c": [{"key": "x", "lines": [1]}]}}, "change": {"key": "y", "lines": []}}
    assert json.loads(text(body)) == wanted


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")], {"a": {"b": [{"c": float("nan")}]}}])
def test_numbers_that_are_no_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        text(value)


def test_each_row_is_a_step() -> None:
    steps = json_parts({"config": {"quotas": {"entities": [{"user": str(number)} for number in range(100)]}}})
    assert sum(1 for _ in steps) >= 100
