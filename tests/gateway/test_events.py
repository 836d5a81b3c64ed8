"""The ledger's lines: round trips of events, and refusals that name the invalid field."""

import json
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events import (
    EVENTS,
    FIELDS,
    ConfigApplied,
    Event,
    EventField,
    InvalidEventError,
    ThrottleEvent,
    UsageSample,
    from_line,
    to_line,
)
from gateway.ledger_paths import file_name, in_progress_name, partition
from gateway.throttle_slots import throttle_slot
from tests.gateway.reports.expected import upper

VALUES = {
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    dict: st.dictionaries(st.integers(0, 500), st.integers(1, 2**40)),
    tuple: st.lists(st.text()).map(tuple),
}


def values_of(field: EventField) -> st.SearchStrategy[object]:
    return st.none() | VALUES[field.holds] if field.optional else VALUES[field.holds]


any_event = st.one_of(
    *(st.builds(event, **{each.name: values_of(each) for each in FIELDS[name]}) for name, event in EVENTS.items())
)


@given(any_event)
def test_line_gives_back_its_event(event: Event) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line) == from_line(line.encode()) == event


def test_each_event_type_and_field_is_documented() -> None:
    assert set(EVENTS.values()) == set(get_args(Event))
    for name, event in EVENTS.items():
        assert [each.name for each in FIELDS[name]] == [each.name for each in fields(event)]


def test_field_has_one_meaning_in_all_events() -> None:
    """All events share the columns of one table."""
    holds: dict[str, type] = {}
    for each in (field for event in FIELDS.values() for field in event):
        assert holds.setdefault(each.name, each.holds) is each.holds


def test_line_has_its_documented_form() -> None:
    """Other programs read these lines, so the format is a contract."""
    event = ThrottleEvent(
        time_ms=1_763_694_900_123,
        last_ms=1_763_694_904_000,
        gateway="weir-0",
        kind="produce",
        user="alice",
        quota="user=alice",
        address="10.0.0.7",
        broker=2,
        api="Produce",
        count=3,
        amount=3_000_000.0,
        rate=1_500_000.5,
        limit=1_048_576.0,
        throttle_ms=912,
        throttle_max_ms=431,
        throttle_slots={84: 2, 90: 1},
    )
    assert to_line(event) == (
        '{"v":1,"type":"throttle","time_ms":1763694900123,"last_ms":1763694904000,"gateway":"weir-0","kind":"produce",'
        '"user":"alice","quota":"user=alice","address":"10.0.0.7","broker":2,"api":"Produce","count":3,"amount":3000000.0,'
        '"rate":1500000.5,"limit":1048576.0,"throttle_ms":912,"throttle_max_ms":431,"throttle_slots":{"84":2,"90":1},'
        '"early_count":0,"early_ms":0,"early_max_ms":0,"enforced":true}'
    )


def test_unknown_fields_are_ignored() -> None:
    line = '{"v":1,"type":"usage","time_ms":60000,"gateway":"g","kind":"fetch","amount":7,"added_later":[1]}'
    assert from_line(line) == UsageSample(time_ms=60_000, gateway="g", kind="fetch", amount=7.0)


GOOD = json.loads(to_line(ConfigApplied(time_ms=1, gateway="g", result="success", config_version="3")))

THROTTLE = json.loads(
    to_line(
        ThrottleEvent(time_ms=1, last_ms=1, gateway="g", kind="fetch", throttle_ms=1, throttle_max_ms=1, throttle_slots={1: 1})
    )
)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "v is None"),
        (json.dumps(GOOD | {"v": 2}), "v is 2"),
        (json.dumps(GOOD | {"type": "gossip"}), "type is 'gossip', none of throttle,"),
        (json.dumps(GOOD | {"gateway": None}), "gateway is missing"),
        (json.dumps(GOOD | {"time_ms": 1.5}), "time_ms is 1.5, not int"),
        (json.dumps(GOOD | {"time_ms": True}), "time_ms is True, not int"),
        (json.dumps(GOOD | {"result": 3}), "result is 3, not str"),
        (json.dumps(GOOD | {"changes": ["a", 1]}), "changes is"),
        ('{"v":1,"type":"usage","time_ms":1,"gateway":"g","kind":"fetch","amount":true}', "amount is True, not float"),
        (json.dumps(THROTTLE | {"amount": 10**400}), "amount is 1000"),
        (json.dumps(THROTTLE | {"throttle_slots": {"one": 1}}), "throttle_slots is"),
        (json.dumps(THROTTLE | {"throttle_slots": {"1": float("inf")}}), "throttle_slots is"),
    ],
)
def test_invalid_event_is_refused(line: str, says: str) -> None:
    with pytest.raises(InvalidEventError, match=says):
        from_line(line)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_line(UsageSample(time_ms=0, gateway="g", kind="fetch", amount=float("nan")))


@given(st.integers(0, 2**31 - 1))
def test_throttle_slot_is_at_most_a_sixteenth_wide(milliseconds: int) -> None:
    slot = throttle_slot(milliseconds)
    longest = upper(milliseconds)
    assert milliseconds <= longest <= milliseconds + milliseconds // 16
    assert throttle_slot(longest) == slot
    assert throttle_slot(longest + 1) == slot + 1


def test_ledger_files_have_documented_names() -> None:
    at = 1_763_694_900_123
    assert partition(at) == "date=2025-11-21/hour=03"
    name = file_name("eu/weir 0", at, 7)
    assert name == "weir-eu_weir_0-20251121T031500-000007.jsonl.gz"
    assert in_progress_name(name) == "_weir-eu_weir_0-20251121T031500-000007.jsonl.gz.part"
