"""Whole numbers of users, files and peers."""

import re
from typing import Final

MAX_INT64: Final = 2**63 - 1
"""The largest number of Java's `long`, in which Kafka and Weir count bytes."""

MAX_INT32: Final = 2**31 - 1
"""The largest number of Java's `int`, in which Kafka counts connections and numbers brokers."""

MAX_PORT: Final = 65_535

_DIGITS: Final = re.compile(r"[0-9]{1,10}")


def whole_number(text: str) -> int | None:
    """The number of at most ten ASCII digits, which node ids, ports and times need. None for any other text.

    `int` alone takes signs, spaces and the digits of other scripts, and raises ValueError for more than 4 300 digits.
    """
    return int(text) if _DIGITS.fullmatch(text) else None
