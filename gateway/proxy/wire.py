"""What a session core asks of the world around it."""

from collections.abc import Callable
from typing import Protocol

Data = bytes | bytearray | memoryview

Write = Callable[[Data], None]
"""What a stream writes to. It begins as its wire's method and is replaced by the transport's own, to save a call a chunk."""


class Wire(Protocol):
    """The two connections and one timer of a session. Every call returns at once."""

    def write_client(self, data: Data) -> None:
        """Send to the client."""
        ...

    def write_broker(self, data: Data) -> None:
        """Send to the broker."""
        ...

    def pause_client(self) -> None:
        """Stop reading from the client; what its socket holds stays there."""
        ...

    def resume_client(self) -> None:
        """Read from the client again."""
        ...

    def wake_at(self, when: float) -> None:
        """Call the core's `wake` at that monotonic time, in seconds, in place of any earlier request for it."""
        ...

    def call_ready(self) -> None:
        """Call the core's `ready` soon, but not from within this call."""
        ...

    def unread_client_bytes(self) -> int:
        """How many bytes the client has sent that nobody has read."""
        ...

    def client_silence_seconds(self) -> float:
        """How long ago the last bytes of the client came, whether or not anybody has read them; 0.0 where nobody knows."""
        ...
