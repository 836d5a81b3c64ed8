"""Problems of a config file, in words for its author."""

import json
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite, isnan

from gateway.config.foreign_names import folded, may_hold_secret, without_value
from gateway.terminal_text import printable

KeyPath = tuple[str | int, ...]
"""The path to a value in the document: keys and list indexes, outermost first. () is the document itself."""

_VALUE_WIDTH = 80
_WITH_SECRETS = ("upstream", "notify")
"""Sections in which a mistyped key may hold a secret."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a config file, with its remedy.

    `key` is a path such as `listeners[0].broker_ports`, or `(file)` for the whole document. `value` is the key's value in
    YAML's flow style, or None. `line` counts from 1; None if the problem has no line.
    """

    key: str
    message: str
    remedy: str
    value: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = [f"value {self.value}"] if self.value is not None else []
        if self.line is not None:
            where.append(f"line {self.line}")
        found = f" ({', '.join(where)})" if where else ""
        return printable(f"{self.key}: {self.message}{found} — {self.remedy}")


class ConfigError(Exception):
    """An invalid config file. Callers give at least one problem, in the file's order."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


def key_path(path: KeyPath) -> str:
    """`("listeners", 0, "name")` as `listeners[0].name`; the empty path as `(file)`. A key that may hold a secret is cut."""
    text = ""
    for part in path:
        if isinstance(part, str) and (path[0] in _WITH_SECRETS or may_hold_secret(part)):
            key = without_value(part)
            part = key if key == part else f"{key}..."
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(file)"


def shown(value: object) -> str:
    """A value in YAML's flow style, cut to 80 characters."""
    if isinstance(value, float) and not isfinite(value):
        return ".nan" if isnan(value) else ".inf" if value > 0 else "-.inf"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        text = reprlib.repr(value)
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 3]}..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most similar to `word`, or None."""
    by_folded = {folded(candidate): candidate for candidate in known}
    matches = get_close_matches(folded(word), by_folded, n=1, cutoff=0.7)
    return by_folded[matches[0]] if matches else None
