"""Several threads that use Spark at the same time."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark import InheritableThread

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def in_threads(make: Callable[[_Item], _Made], items: Sequence[_Item], number: int) -> Sequence[_Made]:
    """Make something of each item, begun in their order, in a number of threads. Raises the first exception of them.

    They must be Spark's own threads, which release their connections to Java.
    """
    made: dict[int, _Made] = {}
    failed: list[BaseException] = []
    left = list(enumerate(items))

    def work() -> None:
        while left and not failed:
            place, item = left.pop(0)
            try:
                made[place] = make(item)
            except BaseException as error:  # raised again below
                failed.append(error)

    threads = [InheritableThread(target=work) for _ in range(min(number, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [made[place] for place in range(len(items))]


def at_once(*works: Callable[[], Any]) -> Sequence[Any]:
    """The results of some functions, each called in a thread of its own. Raises the first exception of them."""
    return in_threads(lambda work: work(), works, len(works))
