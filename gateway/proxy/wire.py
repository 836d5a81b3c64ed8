"""The connections and the timer of a session core."""

from collections.abc import Callable
from typing import Protocol

Data = bytes | bytearray | memoryview

Write = Callable[[Data], None]
"""Begins as the wire's method, and is replaced by the transport's own, to save a call per chunk."""


class Wire(Protocol):
    """The two connections and one timer of a session. Every call returns at once."""

    def write_client(self, data: Data) -> None: ...

    def write_broker(self, data: Data) -> None: ...

    def pause_client(self) -> None:
        """Stop reading from the client; the bytes in its socket stay there."""
        ...

    def resume_client(self) -> None: ...

    def wake_at(self, when: float) -> None:
        """Call the core's `wake` at that monotonic time, in seconds, in place of any earlier request for it."""
        ...

    def call_ready(self) -> None:
        """Call the core's `ready` soon, but not from within this call."""
        ...

    def unread_client_bytes(self) -> int:
        """The number of bytes that the client has sent and the session has not read."""
        ...

    def client_silence_seconds(self) -> float:
        """Seconds since the client's last bytes came, read or not; 0.0 if unknown."""
        ...
