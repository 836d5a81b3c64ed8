"""One connection's SASL authentication: both sides' messages, and the resulting user."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from gateway.proxy.authentication.mechanisms import READERS, Mechanism, MechanismVerdict, Unreadable
from gateway.proxy.authentication.sasl_states import SaslEvent, SaslState, after
from gateway.quotas.groups import NO_CLAIMS, Claims
from protocol.bodies import sasl
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError

FAILURES: Mapping[int, str] = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: "refused",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "unsupported_mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "illegal_state",
}
"""The metric label for a broker's error code. Any other code is a `broker_error`."""

_VERDICTS = {
    MechanismVerdict.CHALLENGED: SaslEvent.CHALLENGE,
    MechanismVerdict.SUCCEEDED: SaslEvent.SUCCEED,
    MechanismVerdict.MAYBE_SUCCEEDED: SaslEvent.SUCCEED_MAYBE,
    MechanismVerdict.REFUSED: SaslEvent.REFUSE,
}


class Step(Enum):
    """The state of an authentication after the broker's answer."""

    GOES_ON = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    UNREADABLE = auto()
    """The broker has accepted the client, but the client's token has no readable name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The meaning of the broker's answer.

    After success, `user` is the connection's user, and `named` is True if the mechanism contains the name. `claims` are those
    of its bearer token. `first` is False if an unreadable token before may have been the last one of the same login. After a
    failure, `reason` is one of a few words.
    """

    step: Step
    mechanism: str
    user: str = ""
    named: bool = False
    reason: str = ""
    claims: Claims = NO_CLAIMS
    first: bool = True


class Authentication:
    """The progress of one connection's authentication. Every method may raise `OutOfTurn`.

    A mechanism that hides the name keeps the previous user: in Kafka, no client can become another user when it
    authenticates again (KIP-368).
    """

    __slots__ = ("_accepted", "_claim", "_reader", "_state", "_user", "_version", "mechanism")

    def __init__(self, user: str, principal_claim: str = "sub") -> None:
        self._user = user
        self._claim = principal_claim
        self._state = SaslState.UNAUTHENTICATED
        self._reader: Mechanism = Unreadable()
        self._version = 0
        self._accepted = False  # the broker may have accepted the client since its last SaslHandshake
        self.mechanism = ""

    @property
    def raw_token_due(self) -> bool:
        """True if the client's next bytes are a token without a request header."""
        return self.token_due and self._version == sasl.RAW_TOKENS

    @property
    def token_due(self) -> bool:
        """True if the client owes a token. A client that leaves instead may have no ticket, or does not trust the broker."""
        return self._state is SaslState.TOKEN_DUE

    @property
    def hides_name(self) -> bool:
        """True if no token of the mechanism shows the name, so that SaslHandshake already says so."""
        return isinstance(self._reader, Unreadable)

    @property
    def unfinished(self) -> bool:
        """True if the broker owes an answer. A broker that closes the connection instead has refused the client."""
        return self._state in (SaslState.MECHANISM_ASKED, SaslState.TOKEN_SENT)

    def client_asks(self, mechanism: str, version: int) -> None:
        """SaslHandshake: the client selects a mechanism, for the first time or to authenticate again.

        Raises `ProtocolError` for raw tokens of a mechanism that Weir can't read, because the end of the tokens would be
        unknown.
        """
        reader = READERS.get(mechanism)
        if reader is None and version == sasl.RAW_TOKENS:  # the broker is not asked, so it owes no answer
            raise ProtocolError(
                "sasl_raw_unreadable",
                "raw tokens of a mechanism that Weir can't read: use a client that sends SaslAuthenticate (Kafka 1.0)",
            )
        self._fire(SaslEvent.ASK)
        self._reader = Unreadable() if reader is None else reader(self._claim)
        self._version = version
        self._accepted = False
        # A client can invent names of mechanisms, so unknown names do not become metric labels.
        self.mechanism = mechanism if reader is not None or mechanism in ("GSSAPI", "EXTERNAL") else "other"

    def broker_agrees(self, error_code: int) -> Outcome:
        """The broker's answer to SaslHandshake."""
        if error_code != ErrorCode.NONE:
            return self._refused(error_code)
        self._fire(SaslEvent.AGREE)
        return Outcome(Step.GOES_ON, self.mechanism)

    def client_sends(self, token: bytes) -> None:
        """A token from the client. It is not stored."""
        self._fire(SaslEvent.TOKEN)
        self._reader.client_sends(token)

    def broker_answers(self, error_code: int, token: bytes) -> Outcome:
        """The broker's answer to the token."""
        if error_code != ErrorCode.NONE:
            return self._refused(error_code)
        verdict = self._reader.broker_answers(token)
        if verdict is MechanismVerdict.REFUSED:
            return self._refused(ErrorCode.SASL_AUTHENTICATION_FAILED)
        name = self._reader.name
        if verdict is not MechanismVerdict.CHALLENGED and name is None and not self._reader.hidden:
            self._fire(SaslEvent.REFUSE)
            return Outcome(Step.UNREADABLE, self.mechanism, reason="unreadable")
        self._fire(_VERDICTS[verdict])
        if verdict is MechanismVerdict.CHALLENGED:
            return Outcome(Step.GOES_ON, self.mechanism)
        self._user = name or self._user
        first, self._accepted = not self._accepted, True
        claims = self._reader.claims
        return Outcome(Step.SUCCEEDED, self.mechanism, self._user, named=name is not None, claims=claims, first=first)

    def _refused(self, error_code: int) -> Outcome:
        self._fire(SaslEvent.REFUSE)
        self._reader = Unreadable()
        return Outcome(Step.FAILED, self.mechanism, reason=FAILURES.get(error_code, "broker_error"))

    def _fire(self, event: SaslEvent) -> None:
        self._state = after(self._state, event)
