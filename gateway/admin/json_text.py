"""JSON of the admin port, in steps: a gateway has thousands of rows, and each call of the codec stops the event loop."""

import json
import re
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from gateway.steps import Steps

_DEEPEST: Final = 3
"""Objects down to this depth are encoded and decoded entry by entry. The rows of lists lie above it."""

_GAP: Final = re.compile(r"[\s,:]*")
_DECODER: Final = json.JSONDecoder()


def json_parts(value: object) -> Steps[list[bytes]]:
    """Standard JSON, with dataclasses as objects. Other parsers would refuse a NaN or an infinity, so they raise ValueError."""
    parts: list[bytes] = []
    yield from _append(value, parts, 0)
    return parts


def json_value(text: str) -> Steps[Any]:
    """The value of a text of `json_parts`. Raises ValueError if the text is cut off."""
    value, _ = yield from _read(text, 0, 0)
    return value


def _read(text: str, at: int, depth: int) -> Steps[tuple[Any, int]]:
    """The value that begins at `at`, and the place behind the value."""
    opening = text[at : at + 1]
    if opening == "[":
        rows: list[Any] = []
        at += 1
        while text[at : at + 1] != "]":
            row, at = _DECODER.raw_decode(text, at)
            rows.append(row)
            at = _behind_gap(text, at)
            yield
        return rows, at + 1
    if opening == "{" and depth < _DEEPEST:
        entries: dict[str, Any] = {}
        at += 1
        while text[at : at + 1] != "}":
            name, at = _DECODER.raw_decode(text, at)
            entries[name], at = yield from _read(text, _behind_gap(text, at), depth + 1)
            at = _behind_gap(text, at)
        return entries, at + 1
    yield
    return _DECODER.raw_decode(text, at)


def _behind_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _append(value: object, parts: list[bytes], depth: int) -> Steps[None]:
    if isinstance(value, list | tuple):
        parts.append(b"[")
        for number, row in enumerate(value):
            parts.append(b", " + _encoded(row) if number else _encoded(row))
            yield
        parts.append(b"]")
    elif isinstance(value, dict) and depth < _DEEPEST and all(isinstance(name, str) for name in value):
        parts.append(b"{")
        for number, (name, each) in enumerate(value.items()):
            parts.append((b", " if number else b"") + _encoded(name) + b": ")
            yield from _append(each, parts, depth + 1)
        parts.append(b"}")
    else:
        parts.append(_encoded(value))
        yield


def _encoded(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, default=_object).encode()


def _object(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{value!r} is not a dataclass")
    return asdict(value)
