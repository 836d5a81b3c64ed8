"""The states of a connection's request direction, from the client to the broker, as a table.

A state decides about the next request. Reasons for a pause are independent of the state and of each other: they are a set of
bits. `PAUSED_BY` has the reasons that pause each state. The position inside a frame is the splitter's.
"""

from enum import Enum, auto
from typing import Final

# Reasons for a pause. Plain ints, as they are looked at for each chunk.
MUTED: Final = 1
"""The client is throttled (`ChannelThrottle`)."""
IN_FLIGHT: Final = 2
"""Too many requests are unanswered, or too many bytes of Weir's own answers wait for their turn."""
CLIENT_UNREAD: Final = 4
"""The client does not read its responses."""
HANDLER: Final = 8
"""The handler of the next request has not decided yet."""

_ANY: Final = MUTED | IN_FLIGHT | CLIENT_UNREAD | HANDLER


class RequestState(Enum):
    """The future of the next request, and of the client's socket."""

    READING = auto()  # the request is taken, unless a reason holds
    DEFERRED = auto()  # it is held, and decided anew once no reason holds; the socket is not read
    WAITING = auto()  # it is held until its handler has decided and no reason holds; the socket is not read
    DRAINING = auto()  # it is held, as Weir takes none any more; the socket is read up to the end of the last request
    DRAINING_WAITING = auto()  # it is the last one, and held as in WAITING
    HALF_CLOSED = auto()  # it is dropped, unless it is a Produce with acks=0; the socket is read until the client closes
    CLOSED = auto()


class RequestEvent(Enum):
    """A decision on the next request, or on the whole connection."""

    TAKE = auto()  # the request is forwarded, answered or collected
    DEFER = auto()  # it is decided anew, by another handler, once no reason holds
    WAIT = auto()  # its handler decides later
    RETRY = auto()  # no reason holds any more
    DRAIN = auto()
    HALF_CLOSE = auto()
    CLOSE = auto()


class IllegalRequestEventError(Exception):
    """An event that is illegal in the direction's state. This is a bug in Weir; no client can cause it."""


_S, _E = RequestState, RequestEvent

TRANSITIONS: dict[tuple[RequestState, RequestEvent], RequestState] = {
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
    (_S.HALF_CLOSED, _E.CLOSE): _S.CLOSED,
    (_S.CLOSED, _E.CLOSE): _S.CLOSED,
}
"""Every legal transition; any other one raises."""

PAUSED_BY: dict[RequestState, int] = {
    _S.READING: _ANY,
    _S.DEFERRED: _ANY,
    _S.WAITING: _ANY,
    _S.DRAINING: _ANY,
    _S.DRAINING_WAITING: _ANY,
    _S.HALF_CLOSED: 0,  # the client's bytes are read before the connection is closed
    _S.CLOSED: 0,
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
        """Go on to the next state; raises `IllegalRequestEventError`."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalRequestEventError(f"{event.name} in state {self.state.name}") from None
        self._set(self.reasons)

    def pause(self, reasons: int) -> None:
        """Replace the reasons, as far as they pause the state."""
        if reasons != self.reasons:
            self._set(reasons)

    def _set(self, reasons: int) -> None:
        self.reasons = reasons & PAUSED_BY[self.state]
        self.open = self.state is RequestState.READING and self.reasons == 0

    @property
    def waits_for_handler(self) -> bool:
        return self.state is RequestState.WAITING or self.state is RequestState.DRAINING_WAITING

    @property
    def may_retry(self) -> bool:
        """True if the held request may be taken up now."""
        if self.reasons or self.state is RequestState.DRAINING:
            return False
        return self.state is not RequestState.HALF_CLOSED and self.state is not RequestState.CLOSED
