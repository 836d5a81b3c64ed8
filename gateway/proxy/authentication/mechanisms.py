"""Reads the user's name and the broker's decision from SASL tokens, by mechanism. It verifies nothing.

A reader sees the tokens of both sides, and stores at most a name and claims: no password, no proof, no bearer token. It parses
each token as Kafka's `SaslServer` for the mechanism, so that both find the same name. A token that Kafka would refuse leaves
`name` None. If the broker accepts such a token, the gateway closes the connection.
"""

import base64
import binascii
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

from gateway.quotas.groups import NO_CLAIMS, Claims, claims_of

MAX_CLAIMS_BYTES: Final = 64 * 1024
"""The longest encoded claims that are read. JSON of 512 KiB, which a SASL request may have, takes 50 ms."""


class MechanismVerdict(Enum):
    """The meaning of a broker's token without an error code."""

    CHALLENGED = auto()
    SUCCEEDED = auto()
    MAYBE_SUCCEEDED = auto()
    REFUSED = auto()


class Mechanism(ABC):
    """One authentication by one mechanism.

    `name` is None until the client has sent it, and if the token is not readable. `hidden` is True if the mechanism does not
    send the name in the clear, so that only the broker knows it. `claims` are those of a bearer token.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.hidden = False
        self.claims: Claims = NO_CLAIMS

    @abstractmethod
    def client_sends(self, token: bytes) -> None:
        """Called for each token of the client."""

    @abstractmethod
    def broker_answers(self, token: bytes) -> MechanismVerdict:
        """Called for each token of the broker that came without an error code."""


class Plain(Mechanism):
    """PLAIN (RFC 4616): authorization id, user and password in one token.

    As in Kafka's `PlainSaslServer`, an authorization id must equal the user's name. Some Kafka versions ignore bytes after a
    third NUL, others refuse the token; the name is read in both cases.
    """

    def client_sends(self, token: bytes) -> None:
        authorization_id, _, rest = token.partition(b"\0")
        user, _, _ = rest.partition(b"\0")
        if user and authorization_id in (b"", user):
            self.name = _text(user)

    def broker_answers(self, token: bytes) -> MechanismVerdict:  # noqa: ARG002
        return MechanismVerdict.SUCCEEDED


# The patterns of Kafka's `ScramMessages` and `OAuthBearerClientInitialResponse`, which accept no byte above 127. Other brokers
# may also accept SCRAM's other channel binding flags (y, p); the flags do not affect the name.
# Possessive, because a choice for each character of a name of 512 KiB takes a tenth of a second, and of a nonce 20 ms. For the
# same reason, a token has at most 100 extensions or pairs.
_SASL_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"
_SCRAM_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]++"
_SCRAM_FIRST: Final = re.compile(
    rb"(?:n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>%(name)s))?,(?:m=%(value)s,)?n=(?P<name>%(name)s),r=[\x21-\x2b\x2d-\x7e]++"
    rb"(?P<extensions>(?:,[A-Za-z]+=%(value)s){0,100})" % {b"name": _SASL_NAME, b"value": _SCRAM_VALUE}
)
_BEARER_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>%s))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]+\x01){0,100})\x01" % _SASL_NAME
)
_BEARER: Final = re.compile(rb"(?i:bearer) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")

_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's `String.trim` removes."""


class Scram(Mechanism):
    """SCRAM (RFC 5802): the client's first token has the name, and the broker's second token confirms the proof.

    With the extension `tokenauth`, the name is the id of a delegation token (KIP-48). The connection's user is then the
    token's owner, and only the broker knows the owner.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent = 0

    def client_sends(self, token: bytes) -> None:
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

    def broker_answers(self, token: bytes) -> MechanismVerdict:
        if self._sent == 1:
            return MechanismVerdict.CHALLENGED
        return MechanismVerdict.SUCCEEDED if self._sent == 2 and token.startswith(b"v=") else MechanismVerdict.REFUSED


class OAuthBearer(Mechanism):
    """OAUTHBEARER (RFC 7628, KIP-255): the principal is a claim of the bearer token, a signed or unsigned JWT.

    If a broker accepts an authorization id, it equals the principal. Without one, the name in a token that is not a JWT is
    hidden. A broker refuses a token by sending a reason without an error code; the error code follows after the client has
    confirmed.
    """

    def __init__(self, claim: str = "sub") -> None:
        super().__init__()
        self._claim = claim
        self._refused = False

    def client_sends(self, token: bytes) -> None:
        """The bearer token, or the confirmation of the refusal."""
        first = None if self._refused else _BEARER_FIRST.fullmatch(token)
        if first is None:
            return
        bearer = _BEARER.fullmatch(_pairs(first["pairs"][:-1], b"\x01").get(b"auth", b""))
        if bearer is None:
            return
        parts = bearer["token"].split(b".")
        if len(parts) == 3 and len(parts[1]) > MAX_CLAIMS_BYTES:
            return
        payload = _payload(parts[1]) if len(parts) == 3 else {}
        self.claims = claims_of(payload)
        claimed = _principal(payload, self._claim, signed=parts[-1] != b"")
        # Kafka compares the authorization id as it was sent, with its escapes.
        authorization_id = (first["authzid"] or b"").decode()
        self.hidden = len(parts) != 3 and not authorization_id
        if not (claimed and authorization_id) or claimed == authorization_id:
            self.name = claimed or authorization_id or None

    def broker_answers(self, token: bytes) -> MechanismVerdict:
        """An empty token means success; otherwise the token has the reason for the refusal."""
        if self._refused:
            return MechanismVerdict.REFUSED
        if not token:
            return MechanismVerdict.SUCCEEDED
        self._refused = True
        return MechanismVerdict.CHALLENGED


def _pairs(text: bytes, separator: bytes) -> dict[bytes, bytes]:
    """`key=value` pairs, parsed like Kafka's `Utils.parseMap`: the last of equal keys counts."""
    return {key: value for key, _, value in (pair.partition(b"=") for pair in text.split(separator))}


def _payload(part: bytes) -> Mapping[str, object]:
    """The claims of a JWT. Empty if the part is not readable."""
    try:
        claims = json.loads(base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _principal(claims: Mapping[str, object], claim: str, *, signed: bool) -> str | None:
    """The claim of a JWT with the principal. Kafka's validator trims the claim of signed tokens only."""
    name = claims.get(claim)
    if not isinstance(name, str) or _has_surrogate(name):
        return None
    return (name.strip(_TRIMMED) if signed else name) or None


def _has_surrogate(name: str) -> bool:
    """JSON may escape one half of a surrogate pair, which no encoding can write."""
    return any("\ud800" <= character <= "\udfff" for character in name)


class Unreadable(Mechanism):
    """GSSAPI, as its tickets are encrypted, and unknown mechanisms."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = True

    def client_sends(self, token: bytes) -> None:
        """Ignores the token."""

    def broker_answers(self, token: bytes) -> MechanismVerdict:  # noqa: ARG002
        """The number of tokens is unknown, so every answer may be the last."""
        return MechanismVerdict.MAYBE_SUCCEEDED


READERS: dict[str, Callable[[str], Mechanism]] = {
    "PLAIN": lambda _: Plain(),
    "SCRAM-SHA-256": lambda _: Scram(),
    "SCRAM-SHA-512": lambda _: Scram(),
    "OAUTHBEARER": OAuthBearer,
}
"""Creates a mechanism's reader from the name of the bearer token's claim. Other mechanisms are `Unreadable`."""


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
