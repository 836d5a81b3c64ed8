"""KIP-219's channel mute states, as a table.

Source: `KafkaChannel.handleChannelMuteEvent`. Kafka mutes a channel for every request. Weir mutes only for a throttled one: it
fires MUTE, REQUEST_RECEIVED and THROTTLE_STARTED together. UNMUTE takes effect after RESPONSE_SENT and THROTTLE_ENDED. An idle
connection is closed while it is muted, too: see `sessions.py`.
"""

from enum import Enum, auto


class MuteState(Enum):
    """Kafka's `ChannelMuteState`."""

    NOT_MUTED = auto()
    MUTED = auto()
    MUTED_AND_RESPONSE_PENDING = auto()
    MUTED_AND_THROTTLED = auto()
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = auto()


class MuteEvent(Enum):
    """Kafka's `ChannelMuteEvent`, and its `mute()` and `maybeUnmute()` as MUTE and UNMUTE."""

    MUTE = auto()
    REQUEST_RECEIVED = auto()
    THROTTLE_STARTED = auto()
    RESPONSE_SENT = auto()
    THROTTLE_ENDED = auto()
    UNMUTE = auto()


class IllegalMuteEventError(Exception):
    """An event that is illegal in the connection's state. This is a bug in Weir; no client can cause it."""


_S, _E = MuteState, MuteEvent

TRANSITIONS: dict[tuple[MuteState, MuteEvent], MuteState] = {
    (_S.NOT_MUTED, _E.MUTE): _S.MUTED,
    (_S.MUTED, _E.MUTE): _S.MUTED,
    (_S.MUTED, _E.REQUEST_RECEIVED): _S.MUTED_AND_RESPONSE_PENDING,
    (_S.MUTED, _E.UNMUTE): _S.NOT_MUTED,
    (_S.MUTED_AND_RESPONSE_PENDING, _E.THROTTLE_STARTED): _S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (_S.MUTED_AND_RESPONSE_PENDING, _E.RESPONSE_SENT): _S.MUTED,
    (_S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _E.RESPONSE_SENT): _S.MUTED_AND_THROTTLED,
    (_S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _E.THROTTLE_ENDED): _S.MUTED_AND_RESPONSE_PENDING,
    (_S.MUTED_AND_THROTTLED, _E.THROTTLE_ENDED): _S.MUTED,
    # UNMUTE has no effect in any other state, as in Kafka.
    (_S.NOT_MUTED, _E.UNMUTE): _S.NOT_MUTED,
    (_S.MUTED_AND_RESPONSE_PENDING, _E.UNMUTE): _S.MUTED_AND_RESPONSE_PENDING,
    (_S.MUTED_AND_THROTTLED, _E.UNMUTE): _S.MUTED_AND_THROTTLED,
    (_S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _E.UNMUTE): _S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
}
"""Every legal transition; any other one raises."""


class Mute:
    """The mute state of one client connection."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = MuteState.NOT_MUTED

    def fire(self, event: MuteEvent) -> MuteState:
        """Go on to the next state and return it; raises `IllegalMuteEventError`."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalMuteEventError(f"{event.name} in state {self.state.name}") from None
        return self.state
