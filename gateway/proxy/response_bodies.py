"""Responses that are not passed on as they come, in any chunks: collected, dropped, or searched for addresses."""

from collections.abc import Callable
from typing import Protocol

from gateway.proxy.wire import Data
from protocol.bodies.addresses import Translate
from protocol.bodies.node_endpoints import TailScanner, rewrite_tail

Change = Callable[[bytes, float], Data]
"""A whole frame and the time at which it is written (monotonic seconds) -> what is written instead."""


class Body(Protocol):
    """Takes the bytes of one response frame and gives those that the client gets instead."""

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        """The next bytes of the frame; what can go out because of them."""
        ...

    def finish(self, now: float) -> Data:
        """The frame is complete: what has to go out still, at that time (monotonic seconds)."""
        ...


class Dropped:
    """A response whose place something else has taken."""

    def feed(self, chunk: bytes, start: int, end: int) -> Data:  # noqa: ARG002
        """Nothing goes out."""
        return b""

    def finish(self, now: float) -> Data:  # noqa: ARG002
        """Nothing goes out."""
        return b""


class Collected:
    """A response that has to be seen whole before it can be changed."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._frame = bytearray()

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        """Collect; nothing goes out yet."""
        self._frame += memoryview(chunk)[start:end]
        return b""

    def finish(self, now: float) -> Data:
        """The changed frame."""
        return self._change(bytes(self._frame), now)


class Searched:
    """A response with records, passed on as it comes up to the addresses at its end (KIP-951).

    Its length went out long before, so these are replaced by addresses of the same total length.
    """

    def __init__(self, api_key: int, version: int, translate: Translate) -> None:
        self._scanner = TailScanner(api_key, version)
        self._api_key = api_key
        self._version = version
        self._translate = translate
        self._tail: bytearray | None = None

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        """Everything before the addresses."""
        view = memoryview(chunk)
        if self._tail is not None:
            self._tail += view[start:end]
            return b""
        tail = start + self._scanner.feed(chunk, start, end)
        if tail < end:
            self._tail = bytearray(view[tail:end])
        return view[start:tail]

    def finish(self, now: float) -> Data:  # noqa: ARG002
        """The addresses, if there are any."""
        if not self._tail or self._tail == b"\0":
            return bytes(self._tail or b"")
        return rewrite_tail(self._api_key, self._version, bytes(self._tail), self._translate)
