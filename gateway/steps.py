"""Work in short steps, so that its caller may serve clients in between. Most steps take some tens of microseconds."""

from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Yields after each step, and returns the result of the work."""


def at_once(steps: Steps[T]) -> T:
    """Take all steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def drained(items: list[T]) -> Iterator[T]:
    """Empty a list from its beginning. To free thousands of items in one moment takes as long as many steps."""
    items.reverse()
    while items:
        yield items.pop()
