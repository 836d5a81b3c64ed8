"""Log messages that the guides quote exist in the source."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"\|\s*log: `([^`]+)`")
VALUES = re.compile(
    r"\bthe broker's\b|\bweir by\b|\bSCRAM-SHA-512\b|\d+(?:-\d+)?|\(\.\.\.\)|\bAddress already in use\b|\bConnection refused\b"
)
"""Values in the quoted messages, and texts of the operating system."""


MESSAGES = [
    (page.name, text)
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    for text in QUOTED.findall(page.read_text("utf-8"))
]


@pytest.fixture(scope="module")
def source() -> str:
    """All modules, with the parts of a string on several lines put together."""
    text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "gateway").rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_guides_quote_log_messages() -> None:
    assert len(MESSAGES) > 5


@pytest.mark.parametrize(("page", "text"), MESSAGES, ids=[text for _, text in MESSAGES])
def test_quoted_message_is_logged(page: str, text: str, source: str) -> None:
    parts = [part.strip(" ,:") for part in VALUES.split(text)]
    assert [part for part in parts if part and part not in source] == [], page
