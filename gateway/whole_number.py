"""Whole numbers in the texts of users, files and peers."""

import re
from typing import Final

_DIGITS: Final = re.compile(r"[0-9]{1,10}")


def whole_number(text: str) -> int | None:
    """The number of at most ten ASCII digits, which node ids, ports and times need. None for any other text.

    `int` alone takes signs, spaces and the digits of other scripts, and raises ValueError for more than 4 300 digits.
    """
    return int(text) if _DIGITS.fullmatch(text) else None
