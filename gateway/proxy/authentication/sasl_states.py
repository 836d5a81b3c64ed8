"""What may happen when while a connection authenticates, as a table.

Source: `SaslServerAuthenticator.SaslState`, the broker's side of it. A client that has authenticated may do so again at any
time (KIP-368), so AUTHENTICATED is not the end. Kafka reads one request at a time; here a client that does not wait for the
answer to a handshake or a token is one that breaks the protocol.
"""

from enum import Enum, auto

from protocol.errors import OutOfTurn


class SaslState(Enum):
    """How far a connection is."""

    UNAUTHENTICATED = auto()
    MECHANISM_ASKED = auto()
    TOKEN_DUE = auto()
    TOKEN_SENT = auto()
    MAYBE_AUTHENTICATED = auto()
    """The broker took a token of a mechanism that can't be read: that was the last one, or the client has to go on."""
    AUTHENTICATED = auto()
    REFUSED = auto()


class SaslEvent(Enum):
    """What the client sends (ASK, TOKEN), and what the broker makes of it."""

    ASK = auto()
    TOKEN = auto()
    AGREE = auto()
    CHALLENGE = auto()
    SUCCEED = auto()
    SUCCEED_MAYBE = auto()
    REFUSE = auto()


_S, _E = SaslState, SaslEvent

TRANSITIONS: dict[tuple[SaslState, SaslEvent], SaslState] = {
    (_S.UNAUTHENTICATED, _E.ASK): _S.MECHANISM_ASKED,
    (_S.MECHANISM_ASKED, _E.AGREE): _S.TOKEN_DUE,
    (_S.MECHANISM_ASKED, _E.REFUSE): _S.REFUSED,
    (_S.TOKEN_DUE, _E.TOKEN): _S.TOKEN_SENT,
    (_S.TOKEN_SENT, _E.CHALLENGE): _S.TOKEN_DUE,
    (_S.TOKEN_SENT, _E.SUCCEED): _S.AUTHENTICATED,
    (_S.TOKEN_SENT, _E.SUCCEED_MAYBE): _S.MAYBE_AUTHENTICATED,
    (_S.TOKEN_SENT, _E.REFUSE): _S.REFUSED,
    (_S.MAYBE_AUTHENTICATED, _E.TOKEN): _S.TOKEN_SENT,
    # Again: after success (KIP-368), and after a refusal as long as the broker leaves the connection open.
    (_S.AUTHENTICATED, _E.ASK): _S.MECHANISM_ASKED,
    (_S.MAYBE_AUTHENTICATED, _E.ASK): _S.MECHANISM_ASKED,
    (_S.REFUSED, _E.ASK): _S.MECHANISM_ASKED,
}
"""Every legal transition; whatever is not here raises `OutOfTurn`."""


def after(state: SaslState, event: SaslEvent) -> SaslState:
    """The state that an event leads to."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise OutOfTurn("sasl_order", f"{event.name} in SASL state {state.name}") from None
