"""Brokers that take connections and never answer: the kernel accepts for a process that is stopped or hangs."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from gateway.cluster.brokers import Address
from gateway.proxy.tcp_info import has_answered


class _Watched(NamedTuple):
    """A connection, and its begin in monotonic seconds."""

    transport: asyncio.Transport
    address: Address
    began: float


class Unanswered:
    """The connections to any broker that are too young to be judged. `seconds` is the time for the first answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: list[_Watched] = []

    def watch(self, transport: asyncio.Transport, address: Address, now: float) -> None:
        self._watched.append(_Watched(transport, address, now))

    def judge(self, now: float) -> Iterator[tuple[Address, bool]]:
        """Yield each address with a connection that is old enough, and True if the broker has sent anything.

        A client that has sent nothing, or has gone, shows nothing.
        """
        watched, self._watched = self._watched, []
        for each in watched:
            if each.transport.is_closing():
                continue
            if now - each.began < self._seconds:
                self._watched.append(each)
                continue
            answered = has_answered(each.transport.get_extra_info("socket"))
            if answered is not None:
                yield each.address, answered
