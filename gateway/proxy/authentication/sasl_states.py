"""The states of a connection's SASL authentication, as a table of transitions.

Source: the broker's `SaslServerAuthenticator.SaslState`. A client may authenticate again at any time (KIP-368), so
AUTHENTICATED is not the last state. Kafka reads one request at a time. A client that does not wait for the answer to a
handshake or a token violates the protocol here.
"""

from enum import Enum, auto

from protocol.errors import OutOfTurn


class SaslState(Enum):
    """The progress of a connection's authentication."""

    UNAUTHENTICATED = auto()
    MECHANISM_ASKED = auto()
    TOKEN_DUE = auto()
    TOKEN_SENT = auto()
    MAYBE_AUTHENTICATED = auto()
    """The broker accepted a token that Weir can't read. The token may be the last one, or the client may send another."""
    AUTHENTICATED = auto()
    REFUSED = auto()


class SaslEvent(Enum):
    """The client's messages (ASK, TOKEN) and the broker's answers."""

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
    # A client may authenticate again after success (KIP-368), and after a refusal if the broker keeps the connection open.
    (_S.AUTHENTICATED, _E.ASK): _S.MECHANISM_ASKED,
    (_S.MAYBE_AUTHENTICATED, _E.ASK): _S.MECHANISM_ASKED,
    (_S.REFUSED, _E.ASK): _S.MECHANISM_ASKED,
}
"""Every legal transition. Any other raises `OutOfTurn`."""


def after(state: SaslState, event: SaslEvent) -> SaslState:
    """The state after an event. Raises `OutOfTurn`."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise OutOfTurn("sasl_order", f"{event.name} in SASL state {state.name}")
    return following
