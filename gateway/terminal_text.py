"""Text of others for a terminal."""


def printable(text: str) -> str:
    """The text on one line, without control characters, which could take over a terminal or end a comment."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
