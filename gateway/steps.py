"""Work in short steps, so that its caller may serve clients in between. Most steps take some tens of microseconds."""

from collections.abc import Generator
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
