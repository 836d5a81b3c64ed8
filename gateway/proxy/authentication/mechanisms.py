"""What the SASL mechanisms tell of who is authenticating, and when the broker has accepted it. Nothing is verified here.

A reader sees the client's tokens and the broker's. It keeps a name at most: no password, no proof, no bearer token. It parses
each token as Kafka's `SaslServer` of that mechanism does, so that both find the same name. A token that Kafka would refuse
leaves `name` None. The gateway then closes the connection if the broker accepts the token all the same.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol


class Verdict(Enum):
    """What a token that the broker has answered without an error means."""

    CHALLENGED = auto()
    SUCCEEDED = auto()
    MAYBE_SUCCEEDED = auto()
    REFUSED = auto()


class Mechanism(Protocol):
    """One authentication by one mechanism.

    `name` is None as long as the client has not sent it, and where the token can't be read. `hidden`: only the broker can know
    the name, as the mechanism does not send it in the clear.
    """

    name: str | None
    hidden: bool

    def client_sends(self, token: bytes) -> None:
        """The client's next token."""
        ...

    def broker_answers(self, token: bytes) -> Verdict:
        """The broker's next token, which came without an error."""
        ...


class Plain:
    """PLAIN (RFC 4616): authorization id, user and password, all in one token.

    As in Kafka's `PlainSaslServer`, an authorization id has to be the user's name. Some versions of it take no notice of what
    follows a third NUL, and others refuse the token, so the name is read in any case.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.hidden = False

    def client_sends(self, token: bytes) -> None:
        """The only token."""
        authorization_id, _, rest = token.partition(b"\0")
        user, _, _ = rest.partition(b"\0")
        if user and authorization_id in (b"", user):
            self.name = _text(user)

    def broker_answers(self, token: bytes) -> Verdict:  # noqa: ARG002
        """An answer without an error is the success."""
        return Verdict.SUCCEEDED


# The patterns of Kafka's `ScramMessages` and `OAuthBearerClientInitialResponse`, which take no byte above 127. Other brokers
# may also take SCRAM's other channel binding flags (y, p), which say nothing about the name.
_SASL_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_SCRAM_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]+"
_SCRAM_FIRST: Final = re.compile(
    rb"(?:n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>%(name)s))?,(?:m=%(value)s,)?n=(?P<name>%(name)s),r=[\x21-\x2b\x2d-\x7e]+"
    rb"(?P<extensions>(?:,[A-Za-z]+=%(value)s)*)" % {b"name": _SASL_NAME, b"value": _SCRAM_VALUE}
)
_BEARER_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>%s))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]+\x01)*)\x01" % _SASL_NAME
)
_BEARER: Final = re.compile(rb"(?i:bearer) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")

_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's `String.trim` removes."""


class Scram:
    """SCRAM (RFC 5802): the client's first token has the name, the broker's second one says that the proof was right.

    With the extension `tokenauth` the name is the id of a delegation token (KIP-48). The broker takes the connection for the
    token's owner, whom only the broker knows.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.hidden = False
        self._sent = 0

    def client_sends(self, token: bytes) -> None:
        """The name, then the proof."""
        self._sent += 1
        first = _SCRAM_FIRST.fullmatch(token) if self._sent == 1 else None
        if first is None:
            return
        name = first["name"].replace(b"=2C", b",").replace(b"=3D", b"=")
        if (first["authzid"] or name) != name:
            return
        extensions = _pairs(first["extensions"][1:], b",")
        self.hidden = extensions.get(b"tokenauth", b"").lower() == b"true"
        self.name = None if self.hidden else name.decode()

    def broker_answers(self, token: bytes) -> Verdict:
        """The salt, then the broker's own proof."""
        if self._sent == 1:
            return Verdict.CHALLENGED
        return Verdict.SUCCEEDED if self._sent == 2 and token.startswith(b"v=") else Verdict.REFUSED


class OAuthBearer:
    """OAUTHBEARER (RFC 7628, KIP-255): the principal is a claim of the bearer token, a JWT, signed or not.

    A broker that accepts an authorization id has found it to be the principal. Without one, the name in a token that is no JWT
    is hidden. A broker answers a token that it does not take with a reason, and without an error until the client has said
    that it has understood.
    """

    def __init__(self, claim: str = "sub") -> None:
        self.name: str | None = None
        self.hidden = False
        self._claim = claim
        self._refused = False

    def client_sends(self, token: bytes) -> None:
        """The bearer token, or that the refusal is understood."""
        first = None if self._refused else _BEARER_FIRST.fullmatch(token)
        if first is None:
            return
        bearer = _BEARER.fullmatch(_pairs(first["pairs"][:-1], b"\x01").get(b"auth", b""))
        if bearer is None:
            return
        parts = bearer["token"].split(b".")
        claimed = _principal(parts[1], self._claim, signed=parts[2] != b"") if len(parts) == 3 else None
        # Kafka compares it as it was sent, with the escapes that may be in it.
        authorization_id = (first["authzid"] or b"").decode()
        self.hidden = len(parts) != 3 and not authorization_id
        if not (claimed and authorization_id) or claimed == authorization_id:
            self.name = claimed or authorization_id or None

    def broker_answers(self, token: bytes) -> Verdict:
        """Nothing, which is the success, or the reason why not."""
        if self._refused:
            return Verdict.REFUSED
        if not token:
            return Verdict.SUCCEEDED
        self._refused = True
        return Verdict.CHALLENGED


def _pairs(text: bytes, separator: bytes) -> dict[bytes, bytes]:
    """`key=value` pairs as Kafka's `Utils.parseMap` reads them: of equal keys the last one counts."""
    return {key: value for key, _, value in (pair.partition(b"=") for pair in text.split(separator))}


def _principal(payload: bytes, claim: str, *, signed: bool) -> str | None:
    """The claim of a JWT that names its principal. Kafka's validator of signed tokens trims it, the other one does not."""
    try:
        claims = json.loads(base64.b64decode(payload + b"=" * (-len(payload) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return None
    name = claims.get(claim) if isinstance(claims, dict) else None
    if not isinstance(name, str) or _has_surrogate(name):
        return None
    return (name.strip(_TRIMMED) if signed else name) or None


def _has_surrogate(name: str) -> bool:
    """JSON may escape half of a character, which no encoding can write."""
    return any("\ud800" <= character <= "\udfff" for character in name)


class Unreadable:
    """GSSAPI, whose tickets are encrypted, and mechanisms that are not known here."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.hidden = True

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
