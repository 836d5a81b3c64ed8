"""Tokens of any bytes raise `ProtocolError` only, and name a user only in UTF-8. Names and claims stay bounded."""

from base64 import urlsafe_b64encode

from gateway.proxy.authentication import Authentication
from gateway.proxy.authentication.conversation import Step
from gateway.quotas.groups import MAX_CLAIM_CHARACTERS, MAX_CLAIMS
from protocol.errors import ProtocolError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "X")
SUBJECT = urlsafe_b64encode(b'{"sub":"alice","groups":["etl","ops"],"n":1}').rstrip(b"=")
WORDS = (
    b"n,,", b"n,a=", b"n=", b",r=", b",m=", b",tokenauth=true", b"=2C", b"=3D", b"auth=Bearer ", b"\1\1", b".e30.", SUBJECT,
    b"y,,", b"p=tls-unique,,", urlsafe_b64encode(b'{"sub":"\\ud800"}'), b"v=",
)  # fmt: skip


def check(data: bytes) -> None:
    """A byte for the mechanism and the version. Each token has a byte for its kind, two for the length, its bytes."""
    if not data:
        return
    mechanism, version = MECHANISMS[data[0] % len(MECHANISMS)], data[0] >> 7
    authentication = Authentication("ANONYMOUS", "sub")
    try:
        authentication.client_asks(mechanism, version)
        _outcome(authentication.broker_agrees(0))
        pos = 1
        while pos + 3 <= len(data):
            kind, size = data[pos], int.from_bytes(data[pos + 1 : pos + 3], "big")
            token = data[pos + 3 : pos + 3 + size]
            pos += 3 + size
            if kind % 4 == 0:
                authentication.client_sends(token)
            elif kind % 4 == 3:
                authentication.client_asks(MECHANISMS[kind % len(MECHANISMS)], 1)
                _outcome(authentication.broker_agrees(kind >> 6))
            else:
                _outcome(authentication.broker_answers(58 if kind % 4 == 2 else 0, token))
    except ProtocolError as error:
        assert error.reason.isidentifier()


def _outcome(outcome) -> None:
    if outcome.step is not Step.SUCCEEDED:
        return
    assert outcome.user
    outcome.user.encode()
    assert len(outcome.claims) <= MAX_CLAIMS
    for name, text in outcome.claims:
        assert len(name) <= MAX_CLAIM_CHARACTERS
        assert len(text) <= MAX_CLAIM_CHARACTERS


def script(mechanism: str, *tokens: tuple[bytes, bytes]) -> bytes:
    parts = [bytes((MECHANISMS.index(mechanism),))]
    for ours, theirs in tokens:
        for kind, token in ((0, ours), (1, theirs)):
            parts.append(bytes((kind,)) + len(token).to_bytes(2, "big") + token)
    return b"".join(parts)


def seeds():
    yield script("PLAIN", (b"\0alice\0secret", b""))
    yield script("PLAIN", (b"alice\0alice\0secret\0more", b""))
    scram = (b"n,a=alice,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2VjcmV0", b"v=c2ln")
    yield script("SCRAM-SHA-256", *scram)
    yield script("SCRAM-SHA-512", (b"n,,m=x,n=a=2Cb=3D,r=1,ext=1", b"r=12"), (b"c=biws", b"e=no"))
    yield script("SCRAM-SHA-256", (b"n,,n=dG9rZW4,r=1,tokenauth=true", b"r=12"), (b"c=biws", b"v=c2ln"))
    yield script("OAUTHBEARER", (b"n,,\1auth=Bearer e30." + SUBJECT + b".c2ln\1\1", b""))
    yield script(
        "OAUTHBEARER", (b"n,a=alice,\1auth=bearer e30." + SUBJECT + b".\1k=v\1\1", b'{"status":"invalid_token"}'), (b"\1", b"")
    )
    yield script("OAUTHBEARER", (b"n,,\1auth=Bearer opaque\1\1", b""))
    yield script("GSSAPI", (b"\x60\x82", b"\x60"), (b"", b""))
