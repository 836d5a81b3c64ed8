"""The surroundings of a session core: two connections, a timer, and the recorder of its throttles."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.quotas.bucket import Bucket, QuotaVerdict

NO_API: Final = -1
"""In place of an API key: a throttle that no request has caused."""

Data = bytes | bytearray | memoryview


# `ChunkReader` and `ChunkWriter` are classes and no `Protocol`s: compiled code calls their methods directly.


class ChunkReader:
    """Gets the bytes of a socket."""

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError


class ChunkWriter:
    """Takes the bytes for a peer: one of Weir's own transports, or `PassingWriter`."""

    def write(self, data: Data) -> None:
        raise NotImplementedError


class PassingWriter(ChunkWriter):
    """Passes the bytes on to a function."""

    def __init__(self, write: Callable[[Data], None]) -> None:
        self._write = write

    def write(self, data: Data) -> None:
        self._write(data)


def writer_to(transport: asyncio.WriteTransport) -> ChunkWriter:
    return transport if isinstance(transport, ChunkWriter) else PassingWriter(transport.write)


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

    def call_in_turn(self) -> None:
        """As `call_ready`, once the other connections that wait for this call have had their turns (`NextTurns`)."""
        ...

    def make_room(self, error: Exception) -> None:
        """End the client's connection at once with that error, as others need the memory of its bytes."""
        ...

    def unread_client_bytes(self) -> int:
        """The number of bytes that the client has sent and the session has not read."""
        ...

    def client_silence_seconds(self) -> float:
        """Seconds since the client's last bytes came, read or not, in the kernel's ticks; 0.0 if unknown."""
        ...

    def client_has_left(self) -> bool:
        """True if the kernel has the client's end of the connection, or a reset; False if unknown."""
        ...

    def refuse(self, seconds: float) -> None:
        """Read the client no more, and close both connections after that time."""
        ...


class UserDecision(Protocol):
    """The decision of the limits on a user's connections.

    If they refuse the connection, it is closed after `delay` seconds, so that its client does not authenticate again at once.
    Otherwise it waits so long if the delay is `enforced`.
    """

    @property
    def refused(self) -> bool: ...

    @property
    def delay(self) -> float: ...

    @property
    def enforced(self) -> bool: ...

    @property
    def bucket(self) -> Bucket | None: ...


class Slot(Protocol):
    """One admitted connection, counted against the connection limits."""

    @property
    def ip(self) -> str: ...

    @property
    def listener(self) -> str: ...

    def identify(self, user: str, now: float) -> UserDecision:
        """Count the connection for its user, once for each user."""
        ...

    def release(self) -> None:
        """Stop counting the connection. A second call does nothing."""
        ...


class Origin:
    """The source and the target of a request: the client's address without its port, and the broker's node id."""

    __slots__ = ("address", "broker")

    def __init__(self, address: str = "", broker: int | None = None) -> None:
        self.address = address
        self.broker = broker


class Recorder(Protocol):
    """Records throttles. The hot path of the throttled client calls it: it must return at once and never raise."""

    def throttled(self, origin: Origin, api_key: int, bucket: Bucket, amount: float, verdict: QuotaVerdict, now: float) -> None:
        """A request used `amount` of a bucket that was over its limit."""
        ...

    def delayed_for_volume(self, origin: Origin, bucket: Bucket, amount: int, seconds: float, now: float) -> None:
        """A Produce of `amount` bytes (0: they are recorded later) is delayed for `seconds` because a volume is filling up.

        `bucket` is the client's own, and has no part in the decision.
        """
        ...

    def early(self, origin: Origin, bucket: Bucket, seconds: float, now: float) -> None:
        """A client has sent `seconds` before its throttle time was over."""
        ...
