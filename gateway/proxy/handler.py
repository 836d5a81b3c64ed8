"""The interface of request handlers: a handler gets a request and returns a verdict, and `RequestStream` carries it out.

A handler factory makes the handler of each request of its API. `ResponseStream` returns the responses.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.proxy.authentication import Authentication
from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import DueAnswers, Entry, Special, TakeAnswer
from gateway.proxy.membership import RETURN_APIS
from gateway.proxy.states import RequestDirection, RequestEvent, RequestState
from gateway.proxy.wire import Slot, Wire
from gateway.quotas.spared_members import let_in, line_of
from protocol.cursor import LENGTH_BYTES
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

MAX_COLLECTED_REQUEST_BYTES: Final = 1 << 20
"""The longest request of an administrator, or of a login, that is collected."""

MAX_UNTRUSTED_BYTES: Final = 32 * 1024
"""The longest request that is collected for a client that may not change the thing that it asks to change.

Also the longest OffsetCommit whose answer is collected."""

FORWARD_COST: Final = 8
"""The work for a request that no handler looks at, some microseconds, in bytes that handlers parse."""

HANDLER_COST: Final = 256
"""The work of a handler that only looks at the head of a request: at most some 0.1 ms."""


class EndConnection(Exception):
    """Close the connection after the bytes that are already written have gone out; the message says why.

    `limit` is the reason under which the connection counts as rejected, "" if no limit closes the connection. With it, the
    connection is closed at once: its memory is needed, and its client may read nothing.
    """

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class Request:
    """A request whose header has arrived. It is `data[pos:after]`; `after` lies behind `data` until the whole request is there.

    `entry` is its place among the requests in flight. A handler sets `answered` to False if no broker answers it (acks=0).
    `cost` counts bytes that handlers parse. If a handler shortens `data`, the rest waits for the connection's next turn.
    """

    __slots__ = ("after", "answered", "cost", "data", "entry", "header", "pos")

    def __init__(self, data: bytes, pos: int, after: int, header: RequestHeader, now: float) -> None:
        self.data = data
        self.pos = pos
        self.after = after
        self.header = header
        self.entry = Entry(header.correlation_id, header.api_key << 16 | header.api_version, now)
        self.answered = True
        self.cost = FORWARD_COST

    @property
    def size(self) -> int:
        """Bytes of the request as Kafka counts them, without the length field."""
        return self.after - self.pos - LENGTH_BYTES

    @property
    def frame_bytes(self) -> int:
        """As `size`, with the length field."""
        return self.after - self.pos

    @property
    def end(self) -> int:
        """The offset behind the last byte that has arrived."""
        return min(self.after, len(self.data))

    @property
    def arrived(self) -> int:
        """The part of `size` that has arrived."""
        return self.end - self.pos - LENGTH_BYTES

    @property
    def whole(self) -> bool:
        return self.after <= len(self.data)

    def intercept(self, handler: "ResponseHandler", lose: "Lose | None" = None, *, longest: int = sys.maxsize) -> None:
        """Let a handler change the broker's answer to the request. The options are as in `InterceptedRequest`."""
        self.entry.special = InterceptedRequest(handler, lose=lose, longest=longest)

    def cut(self) -> tuple[bytes, RequestHeader]:
        """The whole frame, and the header with its offset into that frame."""
        self.cost += self.frame_bytes
        return self.data[self.pos : self.after], self.header.moved(-self.pos)


class Verdict:
    """The decision on one request: one of the classes below."""

    __slots__ = ()


class Forward(Verdict):
    """The broker gets the request as it comes."""

    __slots__ = ()


class Replace(Verdict):
    """The broker gets `frame` in place of the bytes that have arrived, and the rest as it comes."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        self.frame = frame


class Answer(Verdict):
    """The client gets `frame`, in its turn and with the throttle time of then. The broker gets nothing."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        self.frame = frame


@dataclass(frozen=True, slots=True)
class Collect(Verdict):
    """Keep the bytes until the request is whole, then ask a new handler. Requests with `records` have a budget of their own."""

    records: bool


class Defer(Verdict):
    """Hold the request and everything behind it, until no reason pauses the connection. A new handler then gets it."""

    __slots__ = ()


class NextTurn(Verdict):
    """As `Defer`, until the connection's next turn (`Wire.call_in_turn`)."""

    __slots__ = ()


class Wait(Verdict):
    """As `Defer`, until the handler calls `Connection.ready`. The same handler then gets the request again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Close(Verdict):
    """The broker gets `frame` in place of the request, and then the connection ends."""

    frame: bytes | None
    reason: str


FORWARD: Final = Forward()
COLLECT: Final = Collect(records=False)
COLLECT_PRODUCE: Final = Collect(records=True)
DEFER: Final = Defer()
NEXT_TURN: Final = NextTurn()
WAIT: Final = Wait()


class RequestHandler(Protocol):
    """Decides on one request, or on all requests of its API on one connection."""

    def handle(self, request: Request, now: float) -> Verdict:
        """Decide on a request, of which perhaps only the header has arrived. `now` is in monotonic seconds.

        Raises Incomplete, before any effect, if the decision needs more bytes; ProtocolError ends the connection. The call
        comes again for a request that was collected, deferred or incomplete.
        """
        ...


class ResponseHandler(Protocol):
    """Gets the broker's whole answer to a request, its four bytes of length included."""

    def response(self, frame: bytes, now: float) -> bytes:
        """The frame that the client gets instead. Broker addresses in it are translated already; its throttle time is raised
        afterwards if the client is muted for longer. Raises ProtocolError or EndConnection, which end the connection."""
        ...


Lose = Callable[[float], None]
"""Gets the time (monotonic seconds) when the broker's connection has ended before the answer."""


class InterceptedRequest(Special):
    """A request whose answer goes through a handler. `raw`: not a request but bytes behind their length, as is the answer.

    With `lose`, the broker's connection stays open for the answer after the client has gone. An answer of more than `longest`
    bytes passes as it comes, and the handler does not see it.
    """

    __slots__ = ("handler", "longest", "lose", "raw")

    def __init__(
        self, handler: ResponseHandler, *, raw: bool = False, lose: Lose | None = None, longest: int = sys.maxsize
    ) -> None:
        self.handler = handler
        self.raw = raw
        self.lose = lose
        self.longest = longest


class OwnAnswer(Special):
    """A request that Weir answers itself, with `frame`."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        self.frame = frame


class RequestGate(Protocol):
    """The check on the requests of a client that has not authenticated.

    `required` is None until Weir knows if the brokers require authentication.
    """

    required: bool | None

    def admit(self, api_key: int, size: int) -> bool:
        """True if a request of that API and of `size` bytes, without its length field, may pass. False if it has to wait
        until `required` is known. Raises ProtocolError."""
        ...


TakeRaw = Callable[[bytes], ResponseHandler]
"""Takes a frame that is not a request, without its length; returns the handler of its answer. Raises ProtocolError."""

SendOwnRequest = Callable[[bytes, TakeAnswer, float], None]
"""(request frame, callback for the answer, now), see `RequestStream.send_own_request`"""


class Connection:
    """The connection around a handler.

    `ready` is called by a handler that returned `WAIT`, at any later time and also after the connection is gone.

    `send_own_request` sends a request of Weir to the broker, before the requests that wait for the handler. The broker answers
    it as a request of this client. The client never sees the answer. If the connection ends first, there is no callback.

    `keep` counts memory (bytes, negative: less) that a handler keeps of requests until their answers. Raises EndConnection.

    `authentication_gate` is None once the client has authenticated. `raw` takes the next frame if that is not a request.
    `peer` is the client's address for the log. Each of `on_close` is called when the connection is gone. `direction` is the
    state of the way from the client to the broker. `due` are the answers that the client has not got whole. `ending` is the
    reason of `end`, until then.

    `slot` counts the connection; without one, it is not counted. `software` is the client's name and version (KIP-511).
    """

    __slots__ = (
        "_refuse", "authentication", "authentication_gate", "client", "direction", "due", "ending", "fetch", "keep",
        "on_close", "peer", "produce", "raw", "ready", "send_own_request", "share_fetch", "slot", "software", "throttle",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        throttle: ChannelThrottle,
        wire: Wire,
        send_own_request: SendOwnRequest,
        due: DueAnswers,
        keep: Callable[[int], None],
        authentication_gate: RequestGate | None = None,
    ) -> None:
        self.ending = ""
        self.keep = keep
        self.client = client
        self.due = due
        self.throttle = throttle
        self.ready: Callable[[], None] = wire.call_ready
        self._refuse = wire.refuse
        self.direction = RequestDirection()
        self.send_own_request = send_own_request
        self.authentication_gate = authentication_gate
        self.authentication: Authentication | None = None
        self.raw: TakeRaw | None = None
        self.peer = ""
        self.on_close: tuple[Callable[[], None], ...] = ()
        self.produce: RequestHandler | None = None
        self.fetch: RequestHandler | None = None
        self.share_fetch: RequestHandler | None = None
        self.slot: Slot | None = None
        self.software = ("", "")

    def admit_user(self, api_key: int, now: float) -> bool:
        """Check the user's limits on connections. From now on, the client's user is certain.

        `api_key` is the request that the time over the limit is recorded for. Returns False if the connection is refused.
        """
        self.authentication_gate = None
        if self.slot is None:
            return True
        verdict = self.slot.identify(self.client.user, now)
        if verdict.refused:
            self.refuse(verdict.delay)
            return False
        if verdict.bucket is not None:
            self.throttle.defer((verdict.delay, verdict.enforced), now, verdict.bucket, api_key)
        return True

    def waits_for_answers(self, now: float) -> bool:
        """True if earlier requests wait for their answers. Then no further request is taken before the last of these answers.

        The caller defers its request, which comes again after that answer. Brokers take one request of a connection at a time
        as well. Behind a long poll, a parsed request would take up to 200 times its bytes for as long as the poll.
        """
        newest = self.due.newest
        if newest is not None:
            self.throttle.hold(newest, now)
        return newest is not None

    def end(self, why: str) -> None:
        """End the connection once the broker's bytes that have arrived are passed on. Answers that count are still awaited."""
        if self.direction.state is not RequestState.CLOSED:
            self.ending = why

    def refuse(self, seconds: float) -> None:
        """Close the connection after that time. The client gets its answers until then, but requests behind them stay here."""
        self.take_no_more()
        self._refuse(seconds)

    def take_no_more(self) -> None:
        """Forward none of the requests that are held or come, as the connection is about to be closed."""
        self.direction.fire(RequestEvent.CLOSE)

    @property
    def closed(self) -> bool:
        """True once the connection is gone: nobody waits for an answer any more."""
        return self.send_own_request is _send_nothing

    def close(self) -> None:
        """Tell `on_close` that the connection is gone. Then drop what refers back to it, so that its memory is free at once."""
        for close in self.on_close:
            close()
        self.on_close = ()
        self.send_own_request = _send_nothing
        self.produce = self.fetch = self.share_fetch = None

    def enter_queues(
        self, kinds: tuple[str, ...], request: Request, now: float, units: int = 0, *, collects: bool = False
    ) -> bool:
        """Mute the client if the request is the connection's first of one of these kinds and that kind's bucket is in debt.

        True: the caller defers the request, and calls again when it comes again. `units` is the cost if a handler counts it.
        A caller that `collects` the request at its turn calls `QueuePlace.leave_queue` once it is whole.
        """
        client, arrives = self.client, collects and not request.whole
        place = client.place
        for kind in kinds:
            while place.enters(kind):
                buckets = client.limited_buckets(kind, now)
                found = place.enter(kind, buckets, request.size, now, arrives=arrives, units=units)
                if found is None:
                    break
                bucket, verdict = found
                if bucket.kind.spares_members and request.header.api_key in RETURN_APIS:
                    line = line_of(bucket, client.user, client.client_id, client.ip)
                    shortened = let_in(bucket, line, verdict, now)
                    if shortened[0] < verdict[0]:
                        place.let_in_at(now + shortened[0])
                        verdict = shortened
                if verdict[1]:
                    # Heartbeats, or acknowledgements, may be behind the request, so it has to pass with the end of the mute.
                    place.let_in_at(now + self.throttle.longest_mute(bucket, request.header.api_key, now))
                if verdict[0] > 0.0:
                    self.throttle.defer(verdict, now, bucket, request.header.api_key)
                if verdict[1]:
                    return True
        return False


def _send_nothing(frame: bytes, take: TakeAnswer, now: float) -> None:
    """The connection is gone."""


HandlerFactory = Callable[[Connection], RequestHandler | None]
"""Makes the handler of a request of its API, or returns the connection's; None forwards the request. It may be called more
than once for one request, and has no other effect."""


def check_size(size: int, limit: int, remedy: str) -> None:
    """Raise InvalidFrame for a request that is too long to be collected."""
    if size > limit:
        raise InvalidFrame("frame_too_large", f"a request of {size} bytes, at most {limit} are opened: {remedy}")
