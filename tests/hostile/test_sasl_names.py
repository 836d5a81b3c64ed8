"""If the broker accepts a client as alice, the gateway charges alice or closes the connection."""

import base64
import json

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_sasl_handler import authenticate, handshake
from tests.hostile.raw_client import RawClient
from tests.hostile.stub_broker import Request
from tests.protocol import codec

FINAL = b"c=biws,r=12,p=cHJvb2Y="
QUOTAS = {"entities": [{"user": "alice", "producer_byte_rate": 1_000_000}]}
REQUIRED = {"sasl": {"required": True}}


def jwt(**claims: str) -> bytes:
    """An unsecured JWS."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b""))


SCRAM_ALICE = {
    "TokenAuth": b"n,,n=alice,r=1,TokenAuth=true",
    "last tokenauth": b"n,,n=alice,r=1,tokenauth=true,tokenauth=false",
    "reserved": b"n,a=alice,m=x,n=alice,r=1",
}
ALICE = {
    "PLAIN with a third NUL": ("PLAIN", b"\0alice\0secret\0junk"),
    "two auth keys": ("OAUTHBEARER", b"n,,\1auth=Bearer opaque\1auth=Bearer " + jwt(sub="alice") + b"\1\1"),
    **{name: ("SCRAM-SHA-512", token) for name, token in SCRAM_ALICE.items()},
}
CLOSED = {
    "PLAIN as somebody else": ("PLAIN", b"boss\0alice\0secret"),
    "PLAIN not UTF-8": ("PLAIN", b"\0al\xffice\0secret"),
    "SCRAM as somebody else": ("SCRAM-SHA-512", b"n,a=boss,n=alice,r=1"),
    "SCRAM not ASCII": ("SCRAM-SHA-512", "n,,n=\uff41lice,r=1".encode()),
    "SCRAM malformed": ("SCRAM-SHA-512", b"n,,n=alice,r=1,,"),
    "OAUTHBEARER as somebody else": ("OAUTHBEARER", b"n,a=bob,\1auth=Bearer " + jwt(sub="alice") + b"\1\1"),
    "OAUTHBEARER without its claim": ("OAUTHBEARER", b"n,,\1auth=Bearer " + jwt(azp="alice") + b"\1\1"),
}


def agree(request: Request) -> bytes:
    """Accept any mechanism."""
    return request.answer(error_code=0, mechanisms=[])


def accept(request: Request) -> bytes:
    """Accept any credentials: SCRAM in two rounds, the other mechanisms in one."""
    token = request.decode().auth_bytes
    answers = {b"n": b"r=12,s=c2E=,i=4096", b"c": b"v=c2ln"}
    bearer = b"\1" in token
    return request.answer(error_code=0, auth_bytes=b"" if bearer or b"\0" in token else answers[token[:1]])


@pytest.fixture
def sasl_broker(broker):
    """A broker that accepts any credentials."""
    broker.answers |= {ApiKey.SASL_HANDSHAKE: agree, ApiKey.SASL_AUTHENTICATE: accept}
    return broker


def log_in(client: RawClient, mechanism: str, token: bytes) -> tuple[bytes, float]:
    """Authenticate. Returns the last answer, and the seconds that it took."""
    client.ask(handshake(1, mechanism))
    answer = client.ask(authenticate(2, token))
    return client.ask(authenticate(3, FINAL)) if mechanism.startswith("SCRAM") else answer


def test_kerberos_can_be_refused_before_its_first_token(sasl_broker, start_weir, connect):
    listener = {"sasl": {"required": True, "unnamed": "close"}}
    client = connect(start_weir(sasl_broker.bootstrap_servers, listener=listener, quotas=QUOTAS))
    answer, _ = client.ask(handshake(1, "GSSAPI"))
    assert codec.decode_response(ApiKey.SASL_HANDSHAKE, 1, answer)["error_code"] == 33
    assert client.is_closed()


@pytest.mark.parametrize("of_all_requests", [{}, {"request_rate": 1_000}], ids=["produce", "request_rate"])
def test_no_token_drops_its_clients_name(sasl_broker, start_weir, connect, of_all_requests):
    quotas = {"entities": [{"user": "alice", "producer_byte_rate": 1_000_000} | of_all_requests]}
    weir = start_weir(sasl_broker.bootstrap_servers, listener=REQUIRED, quotas=quotas)
    produced = {name: (m.produce(9, client_id=name), *login) for name, login in ALICE.items()}
    for frame, mechanism, token in produced.values():
        client = connect(weir)
        log_in(client, mechanism, token)
        client.ask(frame)
    rows = weir.usage()
    assert {(row["user"], row["connections"]) for row in rows if row["kind"] == "produce"} == {("alice", len(ALICE))}


def is_refused(client: RawClient, mechanism: str, token: bytes) -> bool:
    """Return True if the login ends with SASL_AUTHENTICATION_FAILED, and the connection then closes."""
    answer, _ = log_in(client, mechanism, token)
    failed = codec.decode_response(ApiKey.SASL_AUTHENTICATE, 2, answer)["error_code"] == 58
    return failed and client.is_closed()


def test_accepted_client_without_a_name_is_refused(sasl_broker, start_weir, connect):
    weir = start_weir(sasl_broker.bootstrap_servers, listener=REQUIRED, quotas=QUOTAS)
    for mechanism, token in CLOSED.values():
        assert is_refused(connect(weir), mechanism, token)
    assert weir.metric("weir_authentication_failures_total", reason="unreadable") == len(CLOSED)
    assert weir.metric("weir_authentications_total") == 0


@pytest.mark.parametrize(("unnamed", "served"), [("anonymous", True), ("close", False)])
def test_hidden_names_are_served_as_configured(sasl_broker, start_weir, connect, unnamed, served):
    listener = {"sasl": {"required": True, "unnamed": unnamed}}
    weir = start_weir(sasl_broker.bootstrap_servers, listener=listener, quotas=QUOTAS)
    client = connect(weir)
    token = b"n,,n=dG9rZW4,r=1,tokenauth=true"
    if not served:
        assert is_refused(client, "SCRAM-SHA-512", token)
        assert weir.metric("weir_authentication_failures_total", reason="unnamed") == 1
        return
    log_in(client, "SCRAM-SHA-512", token)
    client.ask(m.produce(9))
    assert {row["user"] for row in weir.usage()} == {""}, "no quota applies to ANONYMOUS"


def test_reauthentication_by_token_keeps_the_name(sasl_broker, start_weir, connect):
    weir = start_weir(sasl_broker.bootstrap_servers, listener=REQUIRED, quotas=QUOTAS)
    client = connect(weir)
    log_in(client, "SCRAM-SHA-512", b"n,,n=alice,r=1")
    log_in(client, "SCRAM-SHA-512", b"n,,n=dG9rZW4,r=1,tokenauth=true")
    client.ask(m.produce(9))
    assert {row["user"] for row in weir.usage()} == {"alice"}
