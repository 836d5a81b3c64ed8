"""The states of a connection as tables: of its request direction, from the client to the broker, and of its mute (KIP-219).

A state of the request direction decides about the next request. Reasons for a pause are independent of the state and of each
other: they are a set of bits. `PAUSED_BY` has the reasons that pause each state. The splitter has the position inside a frame.

The mute's states are those of Kafka's `KafkaChannel.handleChannelMuteEvent`. Kafka mutes a channel for every request. Weir
mutes for a throttled request: it fires MUTE, REQUEST_RECEIVED and THROTTLE_STARTED together. For a held request
(`ChannelThrottle.hold`) it fires the first two, and the answer may bring the third. UNMUTE takes effect after RESPONSE_SENT and
THROTTLE_ENDED. An idle connection is closed while it is muted, too: see `sessions.py`.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeVar

# Reasons for a pause. Plain ints, as they are looked at for each chunk.
MUTED: Final = 1
"""The client is throttled (`ChannelThrottle`)."""
IN_FLIGHT: Final = 2
"""Too many requests are unanswered, or too many bytes of Weir's own answers wait for their turn."""
CLIENT_UNREAD: Final = 4
"""The client does not read its responses."""
HANDLER: Final = 8
"""`Connection.ready` has to be called: the next request's handler has not decided, or waits for the event loop's next turn."""

_ANY: Final = MUTED | IN_FLIGHT | CLIENT_UNREAD | HANDLER


_State = TypeVar("_State", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)


class IllegalEventError(Exception):
    """An event that is illegal in the connection's state. This is a bug in Weir; no client can cause it."""


def next_state(transitions: Mapping[tuple[_State, _Event], _State], state: _State, event: _Event) -> _State:
    """Look up a transition. Raises `IllegalEventError`."""
    try:
        return transitions[state, event]
    except KeyError:
        raise IllegalEventError(f"{event.name} in state {state.name}") from None


class _Step(Enum):
    """A state or an event. Its hash is that of the object, as `Enum.__hash__` would be a call of Python for each transition."""

    __hash__ = object.__hash__


class RequestState(_Step):
    """The future of the next request, and of the client's socket."""

    READING = auto()  # the request is taken, unless a reason holds
    DEFERRED = auto()  # it is held, and decided anew once no reason holds; the socket is not read
    WAITING = auto()  # it is held until its handler has decided and no reason holds; the socket is not read
    DRAINING = auto()  # it is held, as Weir takes none any more; the socket is read up to the end of the last request
    DRAINING_WAITING = auto()  # it is the last one, and held as in WAITING
    HALF_CLOSED = auto()  # it is dropped, unless it is a Produce with acks=0; the socket is read until the client closes
    CLOSED = auto()  # it is held and never taken: the connection is about to be closed, or is gone


class RequestEvent(_Step):
    """A decision on the next request, or on the whole connection."""

    TAKE = auto()  # the request is forwarded, answered or collected
    DEFER = auto()  # it is decided anew, by another handler, once no reason holds, or taken up in the event loop's next turn
    WAIT = auto()  # its handler decides later
    RETRY = auto()  # no reason holds any more
    DRAIN = auto()
    HALF_CLOSE = auto()
    CLOSE = auto()


_S, _E = RequestState, RequestEvent

REQUEST_TRANSITIONS: dict[tuple[RequestState, RequestEvent], RequestState] = {
    (_S.READING, _E.TAKE): _S.READING,
    (_S.READING, _E.DEFER): _S.DEFERRED,
    (_S.READING, _E.WAIT): _S.WAITING,
    (_S.READING, _E.DRAIN): _S.DRAINING,
    (_S.READING, _E.CLOSE): _S.CLOSED,
    (_S.DEFERRED, _E.RETRY): _S.READING,
    (_S.DEFERRED, _E.DRAIN): _S.DRAINING,
    (_S.DEFERRED, _E.CLOSE): _S.CLOSED,
    # The handler is asked again in the same state, and may say anything.
    (_S.WAITING, _E.TAKE): _S.READING,
    (_S.WAITING, _E.DEFER): _S.DEFERRED,
    (_S.WAITING, _E.WAIT): _S.WAITING,
    (_S.WAITING, _E.DRAIN): _S.DRAINING_WAITING,
    (_S.WAITING, _E.CLOSE): _S.CLOSED,
    (_S.DRAINING, _E.HALF_CLOSE): _S.HALF_CLOSED,
    (_S.DRAINING, _E.CLOSE): _S.CLOSED,
    (_S.DRAINING_WAITING, _E.TAKE): _S.DRAINING,
    (_S.DRAINING_WAITING, _E.DEFER): _S.DRAINING,  # nothing of it has gone to the broker: its client sends it elsewhere
    (_S.DRAINING_WAITING, _E.WAIT): _S.DRAINING_WAITING,
    (_S.DRAINING_WAITING, _E.CLOSE): _S.CLOSED,
    (_S.HALF_CLOSED, _E.TAKE): _S.HALF_CLOSED,
    (_S.HALF_CLOSED, _E.DEFER): _S.HALF_CLOSED,  # to the event loop's next turn
    (_S.HALF_CLOSED, _E.CLOSE): _S.CLOSED,
    # The gateway may end while a connection is about to be closed.
    (_S.CLOSED, _E.DEFER): _S.CLOSED,
    (_S.CLOSED, _E.DRAIN): _S.CLOSED,
    (_S.CLOSED, _E.HALF_CLOSE): _S.CLOSED,
    (_S.CLOSED, _E.CLOSE): _S.CLOSED,
}
"""Every legal transition; any other one raises."""

PAUSED_BY: dict[RequestState, int] = {
    _S.READING: _ANY,
    _S.DEFERRED: _ANY,
    _S.WAITING: _ANY,
    _S.DRAINING: _ANY,
    _S.DRAINING_WAITING: _ANY,
    _S.HALF_CLOSED: HANDLER,  # the client's bytes are read before the connection is closed
    _S.CLOSED: CLIENT_UNREAD,  # the broker is read again once the client is gone
}
"""The reasons that pause a state. Reasons that do not are forgotten."""


class RequestDirection:
    """The state of one connection's request direction, and the reasons that pause it.

    `open` is True in READING without a reason: only then the fast path may take requests.
    """

    __slots__ = ("open", "reasons", "state")

    def __init__(self) -> None:
        self.state = RequestState.READING
        self.reasons = 0
        self.open = True

    def fire(self, event: RequestEvent) -> None:
        """Go on to the next state; raises `IllegalEventError`."""
        self.state = next_state(REQUEST_TRANSITIONS, self.state, event)
        self._set(self.reasons)

    def pause(self, reasons: int) -> None:
        """Replace the reasons, as far as they pause the state."""
        if reasons != self.reasons:
            self._set(reasons)

    def _set(self, reasons: int) -> None:
        self.reasons = reasons & PAUSED_BY[self.state]
        self.open = self.state is RequestState.READING and self.reasons == 0

    @property
    def reads(self) -> bool:
        """True if the client's socket is read for more requests."""
        return self.open or (self.state is RequestState.HALF_CLOSED and self.reasons == 0)

    @property
    def waits_for_handler(self) -> bool:
        return self.state is RequestState.WAITING or self.state is RequestState.DRAINING_WAITING

    @property
    def may_retry(self) -> bool:
        """True if the held request may be taken up now."""
        if self.reasons:
            return False
        return self.state is not RequestState.DRAINING and self.state is not RequestState.CLOSED


class MuteState(_Step):
    """Kafka's `ChannelMuteState`."""

    NOT_MUTED = auto()
    MUTED = auto()
    MUTED_AND_RESPONSE_PENDING = auto()
    MUTED_AND_THROTTLED = auto()
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = auto()


class MuteEvent(_Step):
    """Kafka's `ChannelMuteEvent`, and its `mute()` and `maybeUnmute()` as MUTE and UNMUTE."""

    MUTE = auto()
    REQUEST_RECEIVED = auto()
    THROTTLE_STARTED = auto()
    RESPONSE_SENT = auto()
    THROTTLE_ENDED = auto()
    UNMUTE = auto()


_M, _ME = MuteState, MuteEvent

MUTE_TRANSITIONS: dict[tuple[MuteState, MuteEvent], MuteState] = {
    (_M.NOT_MUTED, _ME.MUTE): _M.MUTED,
    (_M.MUTED, _ME.MUTE): _M.MUTED,
    (_M.MUTED, _ME.REQUEST_RECEIVED): _M.MUTED_AND_RESPONSE_PENDING,
    (_M.MUTED, _ME.UNMUTE): _M.NOT_MUTED,
    (_M.MUTED_AND_RESPONSE_PENDING, _ME.THROTTLE_STARTED): _M.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (_M.MUTED_AND_RESPONSE_PENDING, _ME.RESPONSE_SENT): _M.MUTED,
    (_M.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _ME.RESPONSE_SENT): _M.MUTED_AND_THROTTLED,
    (_M.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _ME.THROTTLE_ENDED): _M.MUTED_AND_RESPONSE_PENDING,
    (_M.MUTED_AND_THROTTLED, _ME.THROTTLE_ENDED): _M.MUTED,
    # UNMUTE has no effect in any other state, as in Kafka.
    (_M.NOT_MUTED, _ME.UNMUTE): _M.NOT_MUTED,
    (_M.MUTED_AND_RESPONSE_PENDING, _ME.UNMUTE): _M.MUTED_AND_RESPONSE_PENDING,
    (_M.MUTED_AND_THROTTLED, _ME.UNMUTE): _M.MUTED_AND_THROTTLED,
    (_M.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _ME.UNMUTE): _M.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
}
"""Every legal transition; any other one raises."""


class Mute:
    """The mute state of one client connection."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = _M.NOT_MUTED

    def fire(self, event: MuteEvent) -> MuteState:
        """Go on to the next state and return it; raises `IllegalEventError`."""
        self.state = next_state(MUTE_TRANSITIONS, self.state, event)
        return self.state
