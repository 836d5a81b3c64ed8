"""Numbers in texts that anybody may have written."""

import pytest

from gateway.whole_number import whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("2147483647", 2**31 - 1), ("9999999999", 9_999_999_999)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1\n", "1_0", "\u0663", "\u00b2", "1" * 11, "1" * 5_000])
def test_other_texts_are_no_number(text: str) -> None:
    assert whole_number(text) is None
