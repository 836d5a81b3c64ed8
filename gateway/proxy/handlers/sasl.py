"""Authentication as it passes (KIP-43, KIP-152, KIP-368): Weir forwards all of it, and believes a client when the broker does.

Only the user's name and the token's claims are kept, in `gateway.proxy.authentication`.
"""

import logging
from typing import Final

from gateway.proxy.authentication import READERS, Authentication, Outcome, Step
from gateway.proxy.counters import Counters
from gateway.proxy.handler import (
    COLLECT,
    FORWARD,
    MAX_COLLECTED_REQUEST_BYTES,
    Connection,
    EndConnection,
    HandlerFactory,
    Request,
    Verdict,
    check_size,
)
from gateway.terminal_text import printable
from protocol.api_keys import APIS, BEFORE_AUTHENTICATION, ApiKey
from protocol.bodies import sasl
from protocol.cursor import LENGTH_BYTES
from protocol.error_codes import ErrorCode
from protocol.errors import OutOfTurn
from protocol.headers import RequestHeader

_REFUSED_SECONDS: Final = 1.0
"""Time for a refused client to read its answer. A close at once may reset the connection before."""

_MAX_MESSAGE: Final = 200
"""Characters of a broker's message that are logged."""

_log = logging.getLogger("weir.session")


class AuthenticationGate:
    """Admits the requests of `BEFORE_AUTHENTICATION`, and nothing else.

    `required` is None until Weir knows if the brokers require authentication. All other requests wait while `looking`, until
    Weir's first look at the cluster has ended. They pass after a look without a result, and connections stay behind the gate
    until Weir knows.
    """

    __slots__ = ("_max_bytes", "looking", "required")

    def __init__(self, max_bytes: int, required: bool | None = True) -> None:
        self._max_bytes = max_bytes
        self.required: bool | None = required
        self.looking = True

    def admit(self, api_key: int, size: int) -> bool:
        if self.required is False:
            return True
        if size > self._max_bytes and (self.required or api_key in BEFORE_AUTHENTICATION):
            raise OutOfTurn(
                "not_authenticated_size",
                f"{size} bytes before authentication, above listeners.sasl.max_frame_bytes={self._max_bytes}",
            )
        if api_key in BEFORE_AUTHENTICATION:
            return True
        if self.required:
            raise OutOfTurn(
                "not_authenticated",
                f"{APIS[api_key].name} before authentication: set the client's security.protocol and sasl.mechanism",
            )
        return not self.looking


class SaslObserver:
    """Makes the handlers of the SASL requests of one listener's connections, and acts on the brokers' answers."""

    def __init__(
        self,
        counters: Counters,
        principal_claim: str,
        *,
        close_unnamed: bool = False,
        max_bytes: int = sasl.MAX_FRAME_BYTES,
    ) -> None:
        """`close_unnamed` ends the connections of clients whose mechanism hides their name; `max_bytes` bounds a request, also
        after authentication."""
        self._counters = counters
        self._principal_claim = principal_claim
        self._close_unnamed = close_unnamed
        self._warned: set[str] = set()
        self.max_bytes = min(max_bytes + LENGTH_BYTES, MAX_COLLECTED_REQUEST_BYTES)

    def handler_factories(self) -> dict[int, HandlerFactory]:
        return {
            int(ApiKey.SASL_HANDSHAKE): lambda connection: _Handshake(connection, self),
            int(ApiKey.SASL_AUTHENTICATE): lambda connection: _Authenticate(connection, self),
        }

    def authentication(self, connection: Connection) -> Authentication:
        """The connection's authentication, which begins now if it has not begun before."""
        if connection.authentication is None:
            connection.authentication = Authentication(connection.client.user, self._principal_claim)
            connection.on_close += (lambda: self._closed(connection),)
        return connection.authentication

    def refuses_mechanism(self, connection: Connection) -> bool:
        """True if Weir refuses the mechanism that the broker agrees to. It is then the authentication's end.

        The broker never sees a token, so a client that retries costs it no login.
        """
        authentication = self.authentication(connection)
        if not self._close_unnamed or not authentication.hides_name:
            return False
        authentication.broker_agrees(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._refuse(connection, authentication.mechanism, "unnamed")
        return True

    def settle(self, connection: Connection, outcome: Outcome, now: float, message: str = "") -> str:
        """Act on the broker's answer with its `message`. Returns Weir's reason if Weir alone refuses the client, else ""."""
        refusal = outcome.reason if outcome.step is Step.UNREADABLE else ""
        if outcome.step is Step.SUCCEEDED and self._close_unnamed and not outcome.named:
            refusal = "unnamed"
        if refusal:
            self._refuse(connection, outcome.mechanism, refusal)
            return refusal
        if outcome.step is Step.FAILED:
            self._failed(connection, outcome.mechanism, outcome.reason, message)
        elif outcome.step is Step.SUCCEEDED:
            if outcome.first:
                self._counters.authentications[outcome.mechanism] += 1
            connection.client.identify(outcome.user, now, outcome.claims)
            connection.admit_user(int(ApiKey.SASL_AUTHENTICATE), now)
            if not outcome.named:
                self._warn_unnamed(outcome)
        connection.raw = _RawToken(connection, self) if self.authentication(connection).raw_token_due else None
        return ""

    def _closed(self, connection: Connection) -> None:
        authentication = connection.authentication
        if authentication is None:
            return
        if authentication.unfinished:
            self._failed(connection, authentication.mechanism, "closed")
        elif authentication.token_due:
            self._failed(connection, authentication.mechanism, "abandoned")

    def _refuse(self, connection: Connection, mechanism: str, reason: str) -> None:
        self._failed(connection, mechanism, reason)
        connection.refuse(_REFUSED_SECONDS)

    def _failed(self, connection: Connection, mechanism: str, reason: str, message: str = "") -> None:
        self._counters.authentication_failures[reason] += 1
        _log.warning(
            "authentication by %s failed: %s", mechanism, _failure_text(mechanism, reason, message),
            extra={"peer": connection.peer, "reason": f"authentication_{reason}", "mechanism": mechanism},
        )  # fmt: skip

    def _warn_unnamed(self, outcome: Outcome) -> None:
        """Log once for each mechanism which user its clients count as."""
        if outcome.mechanism in self._warned:
            return
        self._warned.add(outcome.mechanism)
        _log.warning(
            "a client has authenticated by %s, which hides its name: it counts as user %s, as do all others without a name."
            ' Give rows with "user: %s, client-id: NAME", as rows of a client-id alone come after user: "<default>". Or refuse'
            " such clients with listeners[].sasl.unnamed: close",
            outcome.mechanism, outcome.user, outcome.user, extra={"mechanism": outcome.mechanism},
        )  # fmt: skip


_FAILURES = {
    "refused": "the broker refuses the credentials",
    "unsupported_mechanism": "the broker does not have this mechanism enabled",
    "illegal_state": "the broker wants no authentication here, or not now",
    "closed": "the connection was closed before the broker's answer",
    "abandoned": "the connection was closed before the client's next token. The client's own log has the cause",
    "broker_error": "the broker answers with an error",
    "unreadable": "the broker accepts a token in which Weir does not find the user's name. Check the client's library, and that"
    " listeners[].sasl.principal_claim is the brokers' claim",
    "unnamed": "listeners[].sasl.unnamed is close, and the mechanism hides the user's name: use one that shows it, or allow it"
    " with unnamed: anonymous",
}

_GSSAPI_HINTS = {
    "refused": ". A Kerberos ticket is for the host that the client connects to, as a rule listeners[].advertised_host. The"
    " brokers' keytab needs the key of kafka/HOST with this host, and all clocks have to agree",
    "abandoned": ": as a rule its KDC has no kafka/HOST, with the host that the client connects to, or its ticket has expired",
}

_CLIENT_MESSAGES = {
    "unreadable": "Authentication failed: the gateway Weir finds no user's name in the token that the broker accepts.",
    "unnamed": "Authentication failed: the login hides the user's name, and the gateway Weir takes no clients without a name.",
}


def _failure_text(mechanism: str, reason: str, message: str) -> str:
    text = _FAILURES.get(reason, _FAILURES["broker_error"])
    if message:
        text += f" ({printable(message[:_MAX_MESSAGE])})"
    return text + _GSSAPI_HINTS.get(reason, "") if mechanism == "GSSAPI" else text


class _Sasl:
    """Handles a SASL request: it is read, and goes on as it came."""

    def __init__(self, connection: Connection, observer: SaslObserver) -> None:
        self._connection = connection
        self._observer = observer
        self._version = 0

    def handle(self, request: Request, now: float) -> Verdict:
        self._connection.client.use(request.header.client_id, now)
        if not request.whole:
            limit, remedy = self._observer.max_bytes, "raise listeners[].sasl.max_frame_bytes if the client is right"
            check_size(request.frame_bytes, limit, remedy)
            return COLLECT
        self._version = request.header.api_version
        self._read(*request.cut())
        request.intercept(self)
        return FORWARD

    def _read(self, frame: bytes, header: RequestHeader) -> None:
        raise NotImplementedError

    def response(self, frame: bytes, now: float) -> bytes:
        raise NotImplementedError


class _Handshake(_Sasl):
    """SaslHandshake: the mechanism that the client asks for."""

    def _read(self, frame: bytes, header: RequestHeader) -> None:
        mechanism = sasl.read_handshake_request(frame, header.body_offset)
        self._observer.authentication(self._connection).client_asks(mechanism, header.api_version)

    def response(self, frame: bytes, now: float) -> bytes:
        connection, answer = self._connection, sasl.read_handshake_response(frame)
        if answer.error_code == ErrorCode.NONE and self._observer.refuses_mechanism(connection):
            return sasl.refuse_mechanism(frame, [name for name in answer.mechanisms if name in READERS])
        self._observer.settle(connection, self._observer.authentication(connection).broker_agrees(answer.error_code), now)
        return frame


class _Authenticate(_Sasl):
    """SaslAuthenticate: a token in a request."""

    def _read(self, frame: bytes, header: RequestHeader) -> None:
        token = sasl.read_authenticate_request(header.api_version, frame, header.body_offset)
        self._observer.authentication(self._connection).client_sends(token)

    def response(self, frame: bytes, now: float) -> bytes:
        answer = sasl.read_authenticate_response(self._version, frame)
        outcome = self._observer.authentication(self._connection).broker_answers(answer.error_code, answer.token)
        refusal = self._observer.settle(self._connection, outcome, now, answer.message)
        return sasl.refuse_token(self._version, frame, _CLIENT_MESSAGES[refusal]) if refusal else frame


class _RawToken:
    """Takes the token that is due after the first version of SaslHandshake; the next frame is a request again.

    A broker that refuses the token closes the connection.
    """

    def __init__(self, connection: Connection, observer: SaslObserver) -> None:
        self._connection = connection
        self._observer = observer

    def __call__(self, token: bytes) -> "_RawToken":
        self._connection.raw = None
        self._observer.authentication(self._connection).client_sends(token)
        return self

    def response(self, frame: bytes, now: float) -> bytes:
        authentication = self._observer.authentication(self._connection)
        outcome = authentication.broker_answers(ErrorCode.NONE, frame[LENGTH_BYTES:])
        if refusal := self._observer.settle(self._connection, outcome, now):
            raise EndConnection(f"authentication_{refusal}")
        return frame
