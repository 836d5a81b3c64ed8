"""Patterns of users and client-ids, as a shell has them: `*` is any text, `?` one character, all else is itself.

Clients choose their client-id, of up to 32 767 characters, and each new one is compared with up to 2 000 patterns. So a
comparison is a few searches by `str.find`, each from the end of the one before. No search is repeated from another place.
"""

import re
from typing import Final

ANY_CHARACTER: Final = "."
NO_STAR: Final = "[^*]"
"""Meanings of `?`, as regular expressions. By `NO_STAR`, it covers every character of a pattern but the wildcard for many."""


class NamePattern:
    """`one` is the meaning of a `?`."""

    __slots__ = ("_first", "_is_whole", "_last", "_longest", "_shortest", "_within")

    def __init__(self, pattern: str, one: str = ANY_CHARACTER) -> None:
        first, *others = pattern.split("*")
        last = others.pop() if others else ""
        self._is_whole = "*" not in pattern
        self._first = _Part(first, one) if first else None
        self._last = _Part(last, one) if last else None
        self._within = [_Part(text, one) for text in others if text]
        # Most names lack the longest text, so one search is enough for them. With a single text, it is the search below.
        texts = "?".join(others).split("?")
        self._longest = max(texts, key=len) if len(texts) > 1 else ""
        self._shortest = len(pattern) - pattern.count("*")

    def matches(self, name: str) -> bool:
        start, end = 0, len(name)
        if end < self._shortest or (self._is_whole and end > self._shortest):
            return False
        if self._first is not None:
            if not self._first.is_at(name, 0):
                return False
            start = self._first.length
        if self._last is not None:
            end -= self._last.length
            if not self._last.is_at(name, end):
                return False
        if self._longest not in name:
            return False
        for part in self._within:  # the earliest place leaves the most room for the parts behind it
            start = part.end_of_first(name, start, end)
            if start < 0:
                return False
        return True


class _Part:
    """The text between two `*`."""

    __slots__ = ("_expression", "_text", "length")

    def __init__(self, text: str, one: str) -> None:
        self.length = len(text)
        self._text = text
        # Without repetitions, so without backtracking.
        self._expression = re.compile(one.join(map(re.escape, text.split("?"))), re.DOTALL) if "?" in text else None

    def is_at(self, name: str, start: int) -> bool:
        if self._expression is None:
            return name.startswith(self._text, start)
        return self._expression.match(name, start) is not None

    def end_of_first(self, name: str, start: int, end: int) -> int:
        """The end of the first occurrence between `start` and `end`; -1 without one."""
        if self._expression is None:
            found = name.find(self._text, start, end)
            return found if found < 0 else found + self.length
        match = self._expression.search(name, start, end)
        return -1 if match is None else match.end()
