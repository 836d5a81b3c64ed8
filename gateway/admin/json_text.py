"""JSON of the admin port, made in steps: a gateway has thousands of rows, and each call of the encoder stops the event loop."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from gateway.steps import Steps

JsonObject = Mapping[str, Any]

_DEEPEST: Final = 3
"""Objects down to this depth are encoded entry by entry. The rows of lists lie above it."""


def json_parts(value: object) -> Steps[list[bytes]]:
    """Standard JSON, with dataclasses as objects. Other parsers would refuse a NaN or an infinity, so they raise ValueError."""
    parts: list[bytes] = []
    yield from _append(value, parts, 0)
    return parts


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
