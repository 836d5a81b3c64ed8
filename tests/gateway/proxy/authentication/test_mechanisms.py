"""Names in tokens, by hand from the mechanisms' specifications. `None` means that the name is unreadable."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.authentication.mechanisms import (
    MAX_CLAIMS_BYTES,
    READERS,
    MechanismVerdict,
    OAuthBearer,
    Plain,
    Scram,
    Unreadable,
)

LONG = "ü" * 20_000

PLAIN = [
    (b"\0alice\0secret", "alice"),
    (b"\0alice\0", "alice"),  # the broker decides about an empty password
    (b"alice\0alice\0secret", "alice"),
    (b"boss\0alice\0secret", None),  # Kafka refuses another authorization id
    ("\0ä=,b\0sécret".encode(), "ä=,b"),
    (f"\0{LONG}\0secret".encode(), LONG),
    (b"", None),
    (b"alice", None),
    (b"alice\0secret", None),
    (b"\0\0secret", None),
    (b"boss\0\0secret", None),
    (b"\0alice\0secret\0junk", "alice"),  # some versions of Kafka take no notice of the rest
    (b"alice\0alice\0secret\0junk", "alice"),
    (b"\0al\xffce\0secret", None),
]


@pytest.mark.parametrize(("token", "name"), PLAIN)
def test_plain_names_user(token, name):
    plain = Plain()
    plain.client_sends(token)
    assert plain.name == name
    assert plain.broker_answers(b"") is MechanismVerdict.SUCCEEDED


SCRAM = [
    ("n,,n=alice,r=nonce", "alice"),
    ("y,,n=alice,r=nonce", "alice"),
    ("p=tls-server-end-point,,n=alice,r=nonce", "alice"),
    ("n,a=alice,n=alice,r=nonce", "alice"),
    ("n,a=boss,n=alice,r=nonce", None),
    ("n,a=a=2Cb,n=a=2Cb,r=nonce", None),  # Kafka compares an authorization id with its escapes
    ("n,,n=a=2Cb=3Dc,r=nonce", "a,b=c"),
    ("n,,n=a=3D2Cb,r=nonce", "a=2Cb"),
    ("n,,n=ä ö,r=nonce", None),  # Kafka takes none but ASCII; others would normalise it first (SASLprep)
    ("n,,m=ext,n=alice,r=nonce", "alice"),
    ("n,,n=alice,r=nonce,other=1", "alice"),
    ("n,,n=alice,r=nonce,tokenauth=false", "alice"),
    ("n,,n=YWJj,r=nonce,tokenauth=true", None),  # a delegation token's id
    ("n,,n=YWJj,r=nonce,x=1,tokenauth=TRUE", None),
    ("n,,n=YWJj,r=nonce,tokenauth=false,tokenauth=true", None),
    ("n,,n=alice,r=nonce,TokenAuth=true", "alice"),  # Kafka's key is lower case
    ("n,,n=alice,r=nonce,tokenauth=true,tokenauth=false", "alice"),  # and the last one counts
    ("n,,n=alice,r=nonce,tokenauth=true=", "alice"),
    ("n,,n=alice,r=nonce,tokenauth", None),
    ("n,,n=alice,r=nonce,", None),
    ("n,,n=alice,r=no nce", None),
    ("n,,n=a=2cb,r=nonce", None),  # only the capital forms are escapes
    ("n,,n=a=b,r=nonce", None),
    ("n,,n=,r=nonce", None),
    ("n,,r=nonce,n=alice", None),
    ("n=alice,r=nonce", None),
    ("", None),
]


@pytest.mark.parametrize(("end", "is_name"), [("", True), ("=2C", True), ("=", False)])
def test_scram_reads_a_name_of_half_a_megabyte(end, is_name):
    scram = Scram()
    scram.client_sends(b"n,,n=" + b"a" * 500_000 + end.encode() + b",r=nonce")
    assert (scram.name is not None) is is_name


@pytest.mark.parametrize(("token", "name"), SCRAM)
def test_scram_names_user(token, name):
    scram = Scram()
    scram.client_sends(token.encode())
    assert scram.name == name
    assert scram.hidden == ("n=YWJj" in token)
    assert scram.broker_answers(b"r=nonce+,s=c2FsdA==,i=4096") is MechanismVerdict.CHALLENGED
    scram.client_sends(b"c=biws,r=nonce+,p=proof")
    assert scram.name == name
    assert scram.broker_answers(b"v=signature") is MechanismVerdict.SUCCEEDED


@pytest.mark.parametrize("last", [b"e=invalid-proof", b"", b"r=nonce+,s=c2FsdA==,i=4096"])
def test_scram_succeeds_only_with_broker_signature(last):
    scram = Scram()
    scram.client_sends(b"n,,n=alice,r=nonce")
    # a proof that comes before it is asked for proves nothing
    assert scram.broker_answers(b"v=signature") is MechanismVerdict.CHALLENGED
    scram.client_sends(b"c=biws,r=nonce+,p=proof")
    assert scram.broker_answers(last) is MechanismVerdict.REFUSED


def test_scram_has_two_rounds():
    scram = Scram()
    for _ in range(3):
        scram.client_sends(b"n,,n=alice,r=nonce")
    assert scram.broker_answers(b"v=signature") is MechanismVerdict.REFUSED


def part(data):
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwt(claims, signature=""):
    return f"{part({'alg': 'none'})}.{part(claims)}.{signature}"


ALICE = jwt({"sub": "alice", "exp": 1})
BEARER = [
    (f"n,,\1auth=Bearer {ALICE}\1\1", "alice"),
    (f"n,,\1auth=bearer {jwt({'sub': 'alice'}, part(b'signed'))}\1\1", "alice"),
    (f"n,a=alice,\1auth=Bearer {ALICE}\1\1", "alice"),
    (f"n,,\1logicalCluster=lkc-1\1auth=Bearer {ALICE}\1pool=p\1\1", "alice"),
    (f"n,,\1auth=BEARER  {jwt({'sub': 'ä b'})}\1\1", "ä b"),
    ("n,a=a=2Cb,\1auth=Bearer opaque-token\1\1", "a=2Cb"),  # the broker has found it to be the principal, as it is
    (f"n,a=alice,\1auth=Bearer {jwt({'scope': 'all'})}\1\1", "alice"),
    (f"n,a=bob,\1auth=Bearer {ALICE}\1\1", None),
    (f"n,,\1auth=Bearer opaque\1auth=Bearer {ALICE}\1\1", "alice"),
    (f"n,,\1auth=Bearer opaque\1Auth=Bearer {ALICE}\1\1", None),
    (f"n,,\1auth=Bearer {jwt({'sub': ' alice'}, part(b'signed'))}\1\1", "alice"),  # Kafka's two validators differ
    (f"n,,\1auth=Bearer {jwt({'sub': ' alice'})}\1\1", " alice"),
    (f"n,,\1auth=Bearer {jwt({'sub': chr(0xD800)})}\1\1", None),
    ("n,,\1auth=Bearer opaque-token\1\1", None),
    (f"n,,\1auth=Basic {ALICE}\1\1", None),
    (f"n,,\1auth={ALICE}\1\1", None),
    (f"n,,\1auth=Bearer {ALICE}\1auth=Bearer {jwt({'sub': 'bob'})}\1\1", "bob"),  # the last one counts
    (f"n,,\1auth=Bearer {ALICE}\1", None),
    (f"n,,\1auth=Bearer {jwt({'scope': 'all'})}\1\1", None),
    (f"n,,\1auth=Bearer {jwt({'sub': 7})}\1\1", None),
    (f"n,,\1auth=Bearer {jwt({'sub': ''})}\1\1", None),
    (f"n,,\1auth=Bearer {jwt(['alice'])}\1\1", None),
    (f"n,,\1auth=Bearer {jwt(b'[' * 200_000)}\1\1", None),
    (f"n,,\1auth=Bearer {jwt(b'{')}\1\1", None),
    (f"n,,\1auth=Bearer {jwt(bytes([0xFF, 0xFE]))}\1\1", None),
    ("n,,\1auth=Bearer a.!!!.c\1\1", None),
    ("n,,\1auth=Bearer a.b\1\1", None),
    ("\1" * 500_000, None),
    ("", None),
]


@pytest.mark.parametrize(("token", "name"), BEARER, ids=range(len(BEARER)))
def test_oauthbearer_names_user(token, name):
    bearer = OAuthBearer()
    bearer.client_sends(token.encode())
    assert bearer.name == name
    assert bearer.broker_answers(b"") is MechanismVerdict.SUCCEEDED


@pytest.mark.parametrize(
    ("token", "hidden"),
    [("opaque", True), ("a.b", True), ("a.b.c.d.e", True), (ALICE, False), (jwt({"sub": 7}), False)],
)
def test_only_token_that_is_no_jwt_hides_name(token, hidden):
    bearer = OAuthBearer()
    bearer.client_sends(f"n,,\1auth=Bearer {token}\1\1".encode())
    assert bearer.hidden == hidden


def test_oauthbearer_reads_configured_claim():
    bearer = OAuthBearer("azp")
    bearer.client_sends(f"n,,\1auth=Bearer {jwt({'sub': 'alice', 'azp': 'service'})}\1\1".encode())
    assert bearer.name == "service"


def test_oauthbearer_reads_claims():
    bearer = OAuthBearer()
    bearer.client_sends(f"n,,\1auth=Bearer {jwt({'sub': 'alice', 'groups': ['payments', 'staff'], 'exp': 5})}\1\1".encode())
    assert bearer.claims == {("sub", "alice"), ("groups", "payments"), ("groups", "staff")}


@pytest.mark.parametrize(("extensions", "name"), [(100, "alice"), (101, None)])
@pytest.mark.parametrize("begin", ["n,,", "n,a=alice,"])
def test_tokens_with_many_extensions_are_unreadable(begin, extensions, name):
    scram, bearer, pairs = Scram(), OAuthBearer(), "a=b\1" * (extensions - 1)
    scram.client_sends(f"{begin}n=alice,r=nonce{',a=b' * extensions}".encode())
    bearer.client_sends(f"{begin}\1auth=Bearer {ALICE}\1{pairs}\1".encode())
    assert (scram.name, bearer.name) == (name, name)


@pytest.mark.parametrize("begin", ["n,", "n,a=alice"])
@pytest.mark.parametrize(("length", "name"), [(0, "alice"), (1, None)])
def test_oauthbearer_reads_claims_of_64_kib(begin, length, name):
    empty = len(json.dumps({"sub": "alice", "groups": ""}))
    claims = {"sub": "alice", "groups": "x" * (MAX_CLAIMS_BYTES * 3 // 4 - empty + length)}
    bearer = OAuthBearer()
    bearer.client_sends(f"{begin},\1auth=Bearer {jwt(claims)}\1\1".encode())
    assert (bearer.name, bearer.hidden, bool(bearer.claims)) == (name, False, name is not None)


def test_oauthbearer_with_explained_refusal_never_succeeds():
    bearer = OAuthBearer()
    bearer.client_sends(f"n,,\1auth=Bearer {ALICE}\1\1".encode())
    assert bearer.broker_answers(b'{"status":"invalid_token"}') is MechanismVerdict.CHALLENGED
    bearer.client_sends(f"n,,\1auth=Bearer {jwt({'sub': 'bob'})}\1\1".encode())
    assert bearer.name == "alice"
    assert bearer.broker_answers(b"") is MechanismVerdict.REFUSED


def test_unreadable_mechanism_may_succeed_at_any_round():
    unreadable = Unreadable()
    for token in (b"\x60\x82", b"", b"\x05\x04"):
        unreadable.client_sends(token)
        assert (unreadable.name, unreadable.broker_answers(token)) == (None, MechanismVerdict.MAYBE_SUCCEEDED)


@pytest.mark.parametrize("mechanism", READERS)
@given(tokens=st.lists(st.tuples(st.binary(max_size=100), st.binary(max_size=20)), max_size=4))
def test_tokens_raise_no_error(mechanism, tokens):
    reader = READERS[mechanism]("sub")
    for client, broker in tokens:
        reader.client_sends(client)
        assert reader.broker_answers(broker) in MechanismVerdict
        assert reader.name is None or reader.name


@pytest.mark.parametrize(
    ("reader", "token"),
    [
        (Plain(), b"\0alice\0secret"),
        (Scram(), b"n,,n=alice,r=secret"),
        (OAuthBearer(), f"n,,\1auth=Bearer {jwt({'sub': 'alice', 'jti': 'secret'})}\1\1".encode()),
    ],
)
def test_reader_keeps_only_the_name(reader, token):
    reader.client_sends(token)
    kept = [value for value in vars(reader).values() if isinstance(value, str | bytes)]
    assert kept in (["alice"], ["alice", "sub"])
