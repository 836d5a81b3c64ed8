"""Authentication as it passes by (KIP-43, KIP-152, KIP-368): all of it goes on as it came, and is believed once the broker has.

Frames are looked at and let go. What is kept of them is in `session.authentication`: a name.
"""

import logging
from typing import Final

from gateway.proxy.authentication import Authentication, Outcome, Step
from gateway.proxy.counters import Counters
from gateway.proxy.handler import Connection, Exchange, Opener
from gateway.proxy.in_flight import Entry
from gateway.proxy.produce_inspection import EndConnection
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import sasl
from protocol.cursor import LENGTH_BYTES
from protocol.errors import OutOfTurn
from protocol.headers import RequestHeader

_BEFORE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_log = logging.getLogger("weir.session")


class AuthenticationGate:
    """Lets through the requests that a broker takes before authentication (`SaslServerAuthenticator`), and nothing else.

    `required` is None as long as Weir does not know if the brokers want authentication. All other requests wait while
    `looking`, which is until Weir's first look at the cluster has ended. They pass after a look that has not found it out, and
    connections stay behind the gate until it is known.
    """

    __slots__ = ("_max_bytes", "looking", "required")

    def __init__(self, max_bytes: int, required: bool | None = True) -> None:
        self._max_bytes = max_bytes
        self.required: bool | None = required
        self.looking = True

    def admit(self, api_key: int, size: int) -> bool:
        """See `exchange.Gate`."""
        if self.required is False:
            return True
        if size > self._max_bytes and (self.required or api_key in _BEFORE):
            raise OutOfTurn(
                "not_authenticated_size",
                f"{size} bytes before authentication, above listeners.sasl.max_frame_bytes={self._max_bytes}",
            )
        if api_key in _BEFORE:
            return True
        if self.required:
            raise OutOfTurn(
                "not_authenticated",
                f"{APIS[api_key].name} before authentication: set the client's security.protocol and sasl.mechanism",
            )
        return not self.looking


class SaslObserver:
    """What opens the SASL requests of one listener's connections."""

    def __init__(self, counters: Counters, principal_claim: str, *, close_unnamed: bool = False) -> None:
        """`close_unnamed`: end the connections of clients whose mechanism hides their name."""
        self._counters = counters
        self._principal_claim = principal_claim
        self._close_unnamed = close_unnamed
        self._told: set[str] = set()

    def openers(self) -> dict[int, Opener]:
        """By API key."""
        return {
            int(ApiKey.SASL_HANDSHAKE): lambda connection: _Handshake(connection, self),
            int(ApiKey.SASL_AUTHENTICATE): lambda connection: _Authenticate(connection, self),
        }

    def authentication(self, connection: Connection) -> Authentication:
        """That of a connection, which begins now if it has not begun before."""
        if connection.authentication is None:
            connection.authentication = Authentication(connection.client.user, self._principal_claim)
            connection.on_close = lambda: self._closed(connection)
        return connection.authentication

    def settle(self, connection: Connection, outcome: Outcome, now: float) -> None:
        """Do what the broker's answer asks for. Raises EndConnection for a client that is accepted and can't be named."""
        if outcome.step is Step.FAILED:
            self._failed(connection, outcome.mechanism, outcome.reason)
        elif outcome.step is Step.UNREADABLE:
            self._end(connection, outcome.mechanism, outcome.reason)
        elif outcome.step is Step.SUCCEEDED:
            if self._close_unnamed and not outcome.named:
                self._end(connection, outcome.mechanism, "unnamed")
            self._counters.authentications[outcome.mechanism] += 1
            connection.gate = None
            connection.client.identify(outcome.user, now)
            if not outcome.named:
                self._tell_unnamed(outcome)
        connection.raw = self.take_raw(connection) if self.authentication(connection).raw_token_due else None

    def take_raw(self, connection: Connection) -> "_TakeRaw":
        """What takes a token that is not in a request."""
        return _TakeRaw(connection, self)

    def _closed(self, connection: Connection) -> None:
        authentication = connection.authentication
        if authentication is not None and authentication.unfinished:
            self._failed(connection, authentication.mechanism, "closed")

    def _end(self, connection: Connection, mechanism: str, reason: str) -> None:
        self._failed(connection, mechanism, reason)
        raise EndConnection(f"authentication_{reason}")

    def _failed(self, connection: Connection, mechanism: str, reason: str) -> None:
        self._counters.authentication_failures[reason] += 1
        _log.warning(
            "authentication by %s failed: %s", mechanism, _FAILED.get(reason, _FAILED["broker_error"]),
            extra={"peer": connection.peer, "reason": f"authentication_{reason}", "mechanism": mechanism},
        )  # fmt: skip

    def _tell_unnamed(self, outcome: Outcome) -> None:
        """Say once for each mechanism who it is that its clients are."""
        if outcome.mechanism in self._told:
            return
        self._told.add(outcome.mechanism)
        _log.warning(
            "a client has authenticated by %s, and its name can't be read from that: it counts as user %s, so give it a quota"
            " by client-id or by that user, or close such connections with listeners[].sasl.unnamed: close",
            outcome.mechanism, outcome.user, extra={"mechanism": outcome.mechanism},
        )  # fmt: skip


_FAILED = {
    "refused": "the broker refuses the credentials",
    "unsupported_mechanism": "the broker does not have this mechanism enabled",
    "illegal_state": "the broker wants no authentication here, or not now",
    "closed": "the connection was closed before the broker's answer",
    "broker_error": "the broker answers with an error",
    "unreadable": "the broker accepts a token in which Weir does not find the user's name, so the connection is closed:"
    " check the client's library, and that listeners[].sasl.principal_claim is the brokers' claim",
    "unnamed": "listeners[].sasl.unnamed is close, and the mechanism hides the user's name: use one that shows it, or allow it"
    " with unnamed: anonymous",
}


class _Sasl:
    """What the exchanges below have in common: nothing is answered here, and everything goes on as it came."""

    def __init__(self, connection: Connection, observer: SaslObserver) -> None:
        self._connection = connection
        self._observer = observer

    def opens(self, size: int, now: float) -> bool:  # noqa: ARG002
        """Always; the listener's `sasl.max_frame_bytes` bounds its length."""
        return True

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        """Never asked for, as every request goes on."""
        raise AssertionError("SASL is answered by the broker")


class _Handshake(_Sasl):
    """SaslHandshake: which mechanism."""

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes:  # noqa: ARG002
        """The client asks for one."""
        mechanism = sasl.read_handshake_request(frame, header.body_offset)
        self._observer.authentication(self._connection).client_asks(mechanism, header.api_version)
        return frame

    def response(self, frame: bytes, now: float) -> bytes:
        """The broker agrees, or does not."""
        error_code = sasl.read_handshake_response(frame).error_code
        self._observer.settle(self._connection, self._observer.authentication(self._connection).broker_agrees(error_code), now)
        return frame


class _Authenticate(_Sasl):
    """SaslAuthenticate: a token in a request."""

    def __init__(self, connection: Connection, observer: SaslObserver) -> None:
        super().__init__(connection, observer)
        self._version = 0

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes:  # noqa: ARG002
        """The client's token."""
        self._version = header.api_version
        token = sasl.read_authenticate_request(header.api_version, frame, header.body_offset)
        self._observer.authentication(self._connection).client_sends(token)
        return frame

    def response(self, frame: bytes, now: float) -> bytes:
        """The broker's token, or its refusal."""
        answer = sasl.read_authenticate_response(self._version, frame)
        outcome = self._observer.authentication(self._connection).broker_answers(answer.error_code, answer.token)
        self._observer.settle(self._connection, outcome, now)
        return frame


class _RawToken(_Sasl):
    """A token that went as it is; a broker that refuses it closes the connection."""

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes:  # noqa: ARG002
        """Never asked for: it is no request."""
        raise AssertionError("a raw token is no request")

    def response(self, frame: bytes, now: float) -> bytes:
        """The broker's token."""
        authentication = self._observer.authentication(self._connection)
        self._observer.settle(self._connection, authentication.broker_answers(sasl.NONE, frame[LENGTH_BYTES:]), now)
        return frame


class _TakeRaw:
    """Takes the token that is due after the first version of SaslHandshake, and the next frame is a request again."""

    def __init__(self, connection: Connection, observer: SaslObserver) -> None:
        self._connection = connection
        self._observer = observer

    def __call__(self, token: bytes) -> Exchange:
        """The client's token."""
        self._connection.raw = None
        self._observer.authentication(self._connection).client_sends(token)
        return _RawToken(self._connection, self._observer)
