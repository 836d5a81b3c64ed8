"""A line of the ledger raises `InvalidEventError` only, and an event survives a round trip."""

import math
from dataclasses import astuple
from typing import Any

from gateway.events import EVENTS, FIELDS, InvalidEventError, from_line, to_line

WORDS = tuple(
    word.encode()
    for word in (
        '"v":1', '"type":',
        *(f'"{name}"' for name in EVENTS), *sorted({f'"{each.name}":' for each in sum(FIELDS.values(), ())}),
        "1e999", "NaN", "null", "true", '"\\ud800"', '{"1":2}', '["a"]',
    )
)  # fmt: skip


def check(data: bytes) -> None:
    try:
        event = from_line(data)
    except InvalidEventError as error:
        str(error).encode("utf-8", "backslashreplace")
        return
    if all(math.isfinite(value) for value in astuple(event) if isinstance(value, float)):
        line = to_line(event)
        assert to_line(from_line(line)) == line


def seeds():
    values: dict[type, Any] = {int: 60_000, float: 1.5, str: "alice", bool: True, dict: {3: 4}, tuple: ("a", "b")}
    for name, event in EVENTS.items():
        yield to_line(event(**{each.name: values[each.holds] for each in FIELDS[name]})).encode()
        yield to_line(event(**{each.name: values[each.holds] for each in FIELDS[name] if each.required})).encode()
