"""Text of others for a terminal, or for the comments of a file."""

from collections.abc import Iterable


def printable(text: str) -> str:
    """The text on one line, without control characters, which could take over a terminal or end a comment."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_lines(lines: Iterable[str]) -> str:
    """Each of the lines as `printable` makes it, so that no text within one of them adds a line."""
    return "\n".join(map(printable, lines))
