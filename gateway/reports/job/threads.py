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


def side_by_side(*works: Callable[[], Any], threads: int | None = None) -> Sequence[Any]:
    """The results of some functions, begun in their order. Raises the exception of the first that has one.

    `threads`: the number of threads. None: one for each function.
    """
    return in_threads(lambda work: work(), works, threads or len(works))
