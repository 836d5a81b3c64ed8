"""Several threads that use Spark at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def in_threads(make: Callable[[_Item], _Made], items: Sequence[_Item], number: int) -> Sequence[_Made]:
    """Make something of each item, begun in their order, in a number of threads.

    After an exception no further item begins. Raises the exception of the first item that has one.
    """
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(make, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def at_once(*works: Callable[[], Any]) -> Sequence[Any]:
    """The results of some functions, each called in a thread of its own. Raises the exception of the first that has one."""
    return in_threads(lambda work: work(), works, len(works))
