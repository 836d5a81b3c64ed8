"""Requests that Weir opens: seen whole, perhaps changed or answered here, and their answers likewise.

What such a request means is the affair of one class in `session.exchanges`; how it gets there, and how its answer keeps its
turn, is that of `RequestStream` and `ResponseStream`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.proxy.authentication import Authentication
from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import Entry, Special, Take
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

MAX_RAW_BYTES: Final = 512 * 1024
"""The longest frame that is no request: Kafka's default of sasl.server.max.receive.size."""

MAX_OPENED_BYTES: Final = 1 << 20
"""The longest request of an administrator, or of a login, that is collected and opened."""

MAX_UNTRUSTED_BYTES: Final = 32 * 1024
"""The longest request that is opened for a client that may not change what it asks to change."""


Ask = Callable[[bytes, Take, float], None]
"""(request frame, who takes the answer, now)"""


class Connection:
    """What an exchange finds of the connection that it takes place on.

    `ready` is to be called, at any later time and also after the connection is gone, by an exchange whose `prepare` said that
    it was not ready.

    `ask` sends the broker a request of the exchange's own, while it is not ready to say what becomes of the client's: the
    broker answers it as it would answer this client, whose connection it is, and the client learns nothing of it. If
    the connection ends before there is an answer, nobody takes it.

    `gate`: what the client's requests have to pass, None once it has authenticated or where nobody has to.
    `authentication`: what it has done so far to authenticate, if anything. `raw`: what takes its next frame, if that is no
    request. `peer`: its address, for the log. `on_close` is called when it is gone.
    """

    __slots__ = ("ask", "authentication", "client", "gate", "on_close", "peer", "raw", "ready", "throttle")

    def __init__(
        self,
        client: Client,
        throttle: ChannelThrottle,
        ready: Callable[[], None],
        ask: Ask,
        gate: "Gate | None" = None,
    ) -> None:
        self.client = client
        self.throttle = throttle
        self.ready = ready
        self.ask = ask
        self.gate = gate
        self.authentication: Authentication | None = None
        self.raw: TakeRaw | None = None
        self.peer = ""
        self.on_close: Callable[[], None] | None = None


class Gate(Protocol):
    """The check on the requests of a client that has not authenticated.

    `required` is None as long as Weir does not know if the brokers want authentication.
    """

    required: bool | None

    def admit(self, api_key: int, size: int) -> bool:
        """Let a request of that API and length (bytes, without its length field) pass; False if it has to wait until
        `required` is known. Raises ProtocolError."""
        ...


class Answering(Protocol):
    """What becomes of the answer to one request. Frames are whole, their four bytes of length included; `now` is in monotonic
    seconds. Each method may raise ProtocolError, which ends the connection.
    """

    def response(self, frame: bytes, now: float) -> bytes:
        """What the client gets instead of the broker's answer. Addresses in it are those that the client is told; its throttle
        time is raised afterwards, if it is too low."""
        ...

    def answer(self, now: float) -> bytes:
        """The answer that is made here, asked for once."""
        ...


class Exchange(Answering, Protocol):
    """One request and its answer."""

    def opens(self, size: int, now: float) -> bool:
        """Whether to collect and open the request, whose frame has `size` bytes. False: the broker gets it as it comes.

        Called when the header is there, perhaps more than once, before any other method. Raises InvalidFrame, which ends the
        connection, for a request that can be neither forwarded nor answered.
        """
        ...

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:
        """Whether it can be decided now what becomes of the request. If not, the client is not read until `Connection.ready`
        is called, and then this is called again. If it has called `ChannelThrottle.defer`, a new exchange gets the request
        after the mute."""
        ...

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes | None:
        """What the broker gets instead of the frame; None if it gets nothing and the request is answered here.

        `header.body_offset` is an offset into `frame`. `entry` is what a throttle is started for.
        """
        ...


def check_size(size: int, limit: int, remedy: str) -> None:
    """Raise InvalidFrame for a request that is too long to be opened."""
    if size > limit:
        raise InvalidFrame("frame_too_large", f"a request of {size} bytes, at most {limit} are opened: {remedy}")


@dataclass(slots=True)
class Opened(Special):
    """A request that was opened. `frame` is its exchange's answer, which waits for its turn; None: the broker answers.
    `raw`: it is no request but bytes behind their length, as is its answer.
    """

    exchange: Answering
    frame: bytes | None = None
    raw: bool = False


TakeRaw = Callable[[bytes], Exchange]
"""Takes a frame that is no request, without its length; gives what takes the answer. Raises ProtocolError."""


Opener = Callable[[Connection], Exchange | None]
"""Makes the exchange for a request of its API; None lets this one pass unopened. It may be called more than once for one
request, and must not do anything but make it."""
