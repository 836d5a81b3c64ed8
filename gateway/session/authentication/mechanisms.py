"""What the SASL mechanisms tell of who is authenticating, and when the broker has accepted it. Nothing is verified here.

A reader sees the client's tokens and the broker's. It keeps a name at most: no password, no proof, no bearer token. A token
that it can't make sense of is no error, as only the broker decides; the name is then unknown.
"""

import base64
import binascii
import json
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol


class Verdict(Enum):
    """What a token that the broker has answered without an error means."""

    CHALLENGED = auto()
    SUCCEEDED = auto()
    MAYBE_SUCCEEDED = auto()
    REFUSED = auto()


class Mechanism(Protocol):
    """One authentication by one mechanism. `name` is None as long as, or wherever, it can't be told."""

    name: str | None

    def client_sends(self, token: bytes) -> None:
        """The client's next token."""
        ...

    def broker_answers(self, token: bytes) -> Verdict:
        """The broker's next token, which came without an error."""
        ...


class Plain:
    """PLAIN (RFC 4616): authorization id, user and password, all in one token.

    Kafka accepts an authorization id only where it is the user's name; others may let it be somebody else's, and then that
    is who acts.
    """

    def __init__(self) -> None:
        self.name: str | None = None

    def client_sends(self, token: bytes) -> None:
        """The only token."""
        authorization_id, first, rest = token.partition(b"\0")
        user, second, password = rest.partition(b"\0")
        whole = first and second and b"\0" not in password
        self.name = _text(authorization_id or user) if whole and user else None

    def broker_answers(self, token: bytes) -> Verdict:  # noqa: ARG002
        """An answer without an error is the success."""
        return Verdict.SUCCEEDED


class Scram:
    """SCRAM (RFC 5802): the client's first token has the name, the broker's second one says that the proof was right."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._sent = 0

    def client_sends(self, token: bytes) -> None:
        """The name, then the proof."""
        self._sent += 1
        if self._sent == 1:
            self.name = _scram_name(token)

    def broker_answers(self, token: bytes) -> Verdict:
        """The salt, then the broker's own proof."""
        if self._sent == 1:
            return Verdict.CHALLENGED
        return Verdict.SUCCEEDED if self._sent == 2 and token.startswith(b"v=") else Verdict.REFUSED


def _scram_name(token: bytes) -> str | None:
    """The name in `n,[a=authorization id],[m=...,]n=user,r=nonce[,extensions]`."""
    parts = (_text(token) or "").split(",")
    if len(parts) > 2 and parts[2].startswith("m="):
        del parts[2]
    if len(parts) < 4 or not (parts[2].startswith("n=") and parts[3].startswith("r=")):
        return None
    # With a delegation token (KIP-48) this is the token's id, of which a user may have many; whose it is, the broker knows.
    if "tokenauth=true" in map(str.lower, parts[4:]):
        return None
    return _sasl_name(parts[1].removeprefix("a=")) or _sasl_name(parts[2].removeprefix("n="))


def _sasl_name(escaped: str) -> str | None:
    """A name in which `,` and `=` are escaped; None for an empty one, and one that holds others."""
    if "=" in escaped.replace("=2C", "").replace("=3D", ""):
        return None
    return escaped.replace("=2C", ",").replace("=3D", "=") or None


_SEPARATOR = "\1"


class OAuthBearer:
    """OAUTHBEARER (RFC 7628, KIP-255): the principal is a claim of the bearer token, a JWT, signed or not.

    A broker answers a token that it does not take with a reason, and without an error until the client has said that it has
    understood.
    """

    def __init__(self, claim: str = "sub") -> None:
        self.name: str | None = None
        self._claim = claim
        self._refused = False

    def client_sends(self, token: bytes) -> None:
        """The bearer token, or that the refusal is understood."""
        if not self._refused:
            self.name = _bearer_name(token, self._claim)

    def broker_answers(self, token: bytes) -> Verdict:
        """Nothing, which is the success, or the reason why not."""
        if self._refused:
            return Verdict.REFUSED
        if not token:
            return Verdict.SUCCEEDED
        self._refused = True
        return Verdict.CHALLENGED


def _bearer_name(token: bytes, claim: str) -> str | None:
    """The name in `n,[a=authorization id],^Aauth=Bearer JWT^A[key=value^A...]^A`, in which ^A is the byte 1."""
    header, *pairs = (_text(token) or "").split(_SEPARATOR)
    credentials = [value for key, _, value in (pair.partition("=") for pair in pairs) if key == "auth"]
    if len(credentials) != 1 or pairs[-2:] != ["", ""]:
        return None
    scheme, _, jwt = credentials[0].strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    # A token that is no JWT, but a broker that takes an authorization id has found it to be the token's principal.
    _, _, authorization_id = header.rstrip(",").partition(",")
    return _claim_of(jwt.strip(), claim) or _sasl_name(authorization_id.removeprefix("a="))


def _claim_of(jwt: str, claim: str) -> str | None:
    _, _, rest = jwt.partition(".")
    payload, dot, _ = rest.partition(".")
    if not dot:
        return None
    try:
        claims = json.loads(base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return None
    name = claims.get(claim) if isinstance(claims, dict) else None
    return name if isinstance(name, str) and name else None


class Unreadable:
    """GSSAPI, whose tickets are encrypted, and mechanisms that are not known here."""

    name: str | None = None

    def client_sends(self, token: bytes) -> None:
        """Something."""

    def broker_answers(self, token: bytes) -> Verdict:  # noqa: ARG002
        """How many rounds there are is not known."""
        return Verdict.MAYBE_SUCCEEDED


READERS: dict[str, Callable[[str], Mechanism]] = {
    "PLAIN": lambda _: Plain(),
    "SCRAM-SHA-256": lambda _: Scram(),
    "SCRAM-SHA-512": lambda _: Scram(),
    "OAUTHBEARER": OAuthBearer,
}
"""What reads a mechanism, made with the claim that names a bearer token's principal. The other mechanisms are `Unreadable`."""


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
