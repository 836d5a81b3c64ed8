"""SASL exchanges that pass through: the forwarded requests, the principal of the connection, and the counters."""

import logging
import struct

import pytest

from gateway.proxy.counters import Counters
from gateway.proxy.handler import EndConnection
from gateway.proxy.handlers.sasl import AuthenticationGate, SaslObserver
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from protocol.errors import ProtocolError
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.gateway.quotas.engines import rows_of
from tests.protocol import codec

CHUNKS = [None, 1, 5, 13]
BEARER = b"n,,\1auth=Bearer e30.eyJzdWIiOiJhbGljZSIsImF6cCI6ImFwcCJ9.\1\1"
ROUNDS = {
    "PLAIN": [(b"\0alice\0secret", b"")],
    "SCRAM-SHA-256": [(b"n,,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2VjcmV0", b"v=c2ln")],
    "SCRAM-SHA-512": [(b"n,a=alice,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2VjcmV0", b"v=c2ln")],
    "OAUTHBEARER": [(BEARER, b"")],
}


DELEGATED = [(b"n,,n=dG9rZW4,r=1,tokenauth=true", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2E=", b"v=c2ln")]
HIDDEN = {
    "GSSAPI": [(b"\x60\x82", b"\x60")],
    "SCRAM-SHA-256": DELEGATED,
    "OAUTHBEARER": [(b"n,,\1auth=Bearer opaque\1\1", b"")],
}


def by_user(**limits):
    return QuotaSettings(
        tuple(EntityQuota(ClientQuotaEntity(user), {"producer_byte_rate": limit}) for user, limit in limits.items())
    )


def transcript(settings=None, *, required=False, claim="sub", max_bytes=1_000, close_unnamed=False):
    counters = Counters()
    gate = AuthenticationGate(max_bytes) if required else None
    handlers = SaslObserver(counters, claim, close_unnamed=close_unnamed).handler_factories()
    return Transcript(settings, handlers=handlers, authentication_gate=gate, counters=counters)


def handshake(correlation_id, mechanism, version=1):
    return codec.encode_request(ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism}, correlation_id, "etl")


def handshaken(correlation_id, version=1, error_code=0, mechanisms=("PLAIN", "SCRAM-SHA-256")):
    values = {"error_code": error_code, "mechanisms": list(mechanisms)}
    return codec.encode_response(ApiKey.SASL_HANDSHAKE, version, values, correlation_id)


def authenticate(correlation_id, token, version=2):
    return codec.encode_request(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token}, correlation_id, "etl")


def authenticated(correlation_id, token, version=2, error_code=0, message="no"):
    values = {"error_code": error_code, "error_message": message if error_code else None, "auth_bytes": token}
    if version >= 1:
        values["session_lifetime_ms"] = 5_000
    return codec.encode_response(ApiKey.SASL_AUTHENTICATE, version, values, correlation_id)


def raw(token):
    return struct.pack(">i", len(token)) + token


def passes(t, request, answer, by=None):
    """The broker gets the request as it was sent, and the client its answer."""
    t.client_sends(request, by=by)
    t.broker_got(request)
    t.broker_answers(answer, by=by)
    t.client_got(answer)


def log_in(t, mechanism="PLAIN", *, version=2, by=None, rounds=None):
    passes(t, handshake(1, mechanism), handshaken(1), by)
    for number, (token, answer) in enumerate(ROUNDS[mechanism] if rounds is None else rounds):
        passes(t, authenticate(10 + number, token, version), authenticated(10 + number, answer, version), by)


def log_in_raw(t, mechanism, *, by=None):
    passes(t, handshake(1, mechanism, version=0), handshaken(1, version=0), by)
    for token, answer in ROUNDS[mechanism]:
        passes(t, raw(token), raw(answer), by)


def users(t):
    return {row.user: row.connections for row in rows_of(t.engine, t.now)}


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("mechanism", ROUNDS)
def test_each_mechanism_names_user(mechanism, version, by):
    t = transcript(by_user(alice=1_000), required=True)
    passes(t, m.api_versions(0), m.versions_are(0, [(0, 3, 13)]), by)
    log_in(t, mechanism, version=version, by=by)
    assert users(t) == {}
    passes(t, m.produce(20), m.produced(20), by)
    assert users(t) == {"alice": 1}
    assert t.counters.authentications == {mechanism: 1}
    assert t.counters.authentication_failures == {}


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("mechanism", ROUNDS)
def test_each_mechanism_names_user_in_raw_tokens(mechanism, by):
    t = transcript(by_user(alice=1_000), required=True)
    log_in_raw(t, mechanism, by=by)
    passes(t, m.produce(20), m.produced(20), by)
    assert users(t) == {"alice": 1}
    assert t.counters.authentications == {mechanism: 1}


def test_requests_around_raw_token_in_one_chunk_pass():
    t = transcript()
    passes(t, handshake(1, "PLAIN", version=0), handshaken(1, version=0))
    ((token, answer),) = ROUNDS["PLAIN"]
    t.client_sends(raw(token), m.metadata(2), m.produce(3))
    t.broker_got(raw(token), m.metadata(2), m.produce(3))
    t.broker_answers(raw(answer), m.described(2, []), m.produced(3))
    t.client_got(raw(answer), m.described(2, []), m.produced(3))
    assert t.counters.authentications == {"PLAIN": 1}


def test_user_quota_applies_after_authentication():
    t = transcript(by_user(alice=1_000, ANONYMOUS=1))
    log_in(t, "SCRAM-SHA-256")
    t.client_sends(m.produce(20, size=11_000))
    t.broker_answers(m.produced(20))
    t.broker_got(m.produce(20, size=11_000))
    t.client_got(m.produced(20, throttle_time_ms=1_000))
    t.passes(1.0)
    assert not t.paused


def test_user_is_unknown_until_broker_accepts():
    t = transcript(by_user(alice=1_000, ANONYMOUS=1_000))
    passes(t, handshake(1, "SCRAM-SHA-256"), handshaken(1))
    (first, salt), (proof, signature) = ROUNDS["SCRAM-SHA-256"]
    passes(t, authenticate(2, first), authenticated(2, salt))
    t.client_sends(authenticate(3, proof), m.produce(4))
    assert users(t) == {"ANONYMOUS": 1}
    t.broker_answers(authenticated(3, signature))
    assert users(t) == {"ANONYMOUS": 0}
    t.client_sends(m.produce(5))
    assert users(t) == {"ANONYMOUS": 0, "alice": 1}


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize(("code", "reason"), [(58, "refused"), (34, "illegal_state"), (-1, "broker_error")])
def test_refused_client_leaves_only_a_count(code, reason, rounds):
    t = transcript(by_user(alice=1_000), required=True)
    passes(t, handshake(1, "SCRAM-SHA-512"), handshaken(1))
    for number, (token, answer) in enumerate(ROUNDS["SCRAM-SHA-512"][:rounds]):
        passes(t, authenticate(2 + number, token), authenticated(2 + number, answer))
    passes(t, authenticate(9, ROUNDS["SCRAM-SHA-512"][rounds][0]), authenticated(9, b"", error_code=code))
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(m.produce(20))
    assert caught.value.reason == "not_authenticated"
    t.core.close(t.now)
    assert users(t) == {}
    assert t.counters.authentication_failures == {reason: 1}
    assert t.counters.authentications == {}


def test_disabled_mechanism_is_counted():
    t = transcript()
    passes(t, handshake(1, "PLAIN"), handshaken(1, error_code=33))
    assert t.counters.authentication_failures == {"unsupported_mechanism": 1}


@pytest.mark.parametrize("mechanism", ROUNDS)
def test_close_instead_of_answer_counts_as_refusal(mechanism):
    t = transcript()
    passes(t, handshake(1, mechanism, version=0), handshaken(1, version=0))
    t.client_sends(raw(ROUNDS[mechanism][0][0]))
    t.core.close(t.now)
    assert t.counters.authentication_failures == {"closed": 1}
    assert users(t) == {}


@pytest.mark.parametrize(("mechanism", "version", "of_kdc"), [("GSSAPI", 1, True), ("PLAIN", 1, False), ("PLAIN", 0, False)])
def test_leaving_before_the_first_token_counts(mechanism, version, of_kdc, caplog):
    """A Kerberos client for which the KDC has no ticket tries about once a second."""
    t = transcript()
    passes(t, handshake(2, mechanism, version), handshaken(2, version))
    t.core.close(t.now)
    assert t.counters.authentication_failures == {"abandoned": 1}
    assert f"authentication by {mechanism} failed: the connection was closed before the client's next token" in caplog.text
    assert ("KDC" in caplog.text) is of_kdc


def test_leaving_between_rounds_counts():
    t = transcript()
    passes(t, handshake(1, "SCRAM-SHA-256"), handshaken(1))
    (first, salt), _ = ROUNDS["SCRAM-SHA-256"]
    passes(t, authenticate(2, first), authenticated(2, salt))
    t.core.close(t.now)
    assert t.counters.authentication_failures == {"abandoned": 1}


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI"])
def test_leaving_after_the_login_is_no_failure(mechanism):
    t = transcript()
    log_in(t, mechanism, rounds=HIDDEN.get(mechanism))
    t.core.close(t.now)
    assert t.counters.authentication_failures == {}


def test_oauthbearer_refusal_takes_two_rounds():
    t = transcript(required=True)
    passes(t, handshake(1, "OAUTHBEARER"), handshaken(1))
    passes(t, authenticate(2, BEARER), authenticated(2, b'{"status":"invalid_token"}'))
    assert t.counters.authentication_failures == {}
    passes(t, authenticate(3, b"\1"), authenticated(3, b"", error_code=58))
    assert t.counters.authentication_failures == {"refused": 1}


def test_configured_claim_names_user():
    t = transcript(by_user(app=1_000), claim="azp")
    log_in(t, "OAUTHBEARER")
    passes(t, m.produce(20), m.produced(20))
    assert users(t) == {"app": 1}


APP = Group("app", (GroupRule(claims=frozenset({("azp", "app")})),), {"producer_byte_rate": 1_000})


@pytest.mark.parametrize(("accepted", "throttle_time_ms"), [(True, 1_000), (False, 0)])
def test_claims_of_an_accepted_token_select_the_group(accepted, throttle_time_ms):
    t = transcript(QuotaSettings((APP.quota,), groups=(APP,)))
    passes(t, handshake(1, "OAUTHBEARER"), handshaken(1))
    passes(t, authenticate(2, BEARER), authenticated(2, b"", error_code=0 if accepted else 58))
    t.client_sends(m.produce(20, size=11_000))
    t.broker_answers(m.produced(20))
    t.client_got(m.produced(20, throttle_time_ms=throttle_time_ms))


def test_reauthentication_with_other_claims_leaves_the_group():
    t = transcript(QuotaSettings((APP.quota,), groups=(APP,)))
    log_in(t, "OAUTHBEARER")
    passes(t, m.produce(20, size=5_000), m.produced(20))
    log_in(t, "PLAIN")
    passes(t, m.produce(21, size=50_000), m.produced(21))
    assert [(row.amount_total, row.connections) for row in rows_of(t.engine, t.now) if row.group] == [(5_000, 0)]


# Again (KIP-368).


@pytest.mark.parametrize("by", CHUNKS)
def test_reauthentication_as_same_user_keeps_use(by):
    t = transcript(by_user(alice=1_000))
    log_in(t, "SCRAM-SHA-256")
    passes(t, m.produce(20, size=6_000), m.produced(20))
    t.client_sends(m.produce(21, size=500))
    t.client_sends(handshake(1, "SCRAM-SHA-256"), by=by)
    t.broker_answers(m.produced(21), handshaken(1), by=by)
    for number, (token, answer) in enumerate(ROUNDS["SCRAM-SHA-256"]):
        t.client_sends(authenticate(30 + number, token), by=by)
        t.broker_answers(authenticated(30 + number, answer), by=by)
    t.client_sends(m.produce(22, size=4_500))
    t.broker_answers(m.produced(22))
    t.client_got(
        m.produced(21), handshaken(1), authenticated(30, b"r=12,s=c2E=,i=4096"), authenticated(31, b"v=c2ln"),
        m.produced(22, throttle_time_ms=1_000),
    )  # fmt: skip
    assert users(t) == {"alice": 1}
    assert t.counters.authentications == {"SCRAM-SHA-256": 2}


def test_reauthentication_as_other_user_charges_that_user():
    t = transcript(by_user(alice=1_000, bob=1_000))
    log_in(t)
    passes(t, m.produce(20), m.produced(20))
    passes(t, handshake(1, "PLAIN"), handshaken(1))
    t.client_sends(m.produce(21))  # under way while the next token is
    log = authenticate(30, b"\0bob\0secret")
    t.client_sends(log)
    t.broker_answers(m.produced(21), authenticated(30, b""))
    assert users(t) == {"alice": 0}
    t.client_sends(m.produce(22))
    assert users(t) == {"alice": 0, "bob": 1}


def test_refused_reauthentication_changes_nothing():
    t = transcript(by_user(alice=1_000, bob=1_000))
    log_in(t)
    passes(t, handshake(1, "PLAIN"), handshaken(1))
    passes(t, authenticate(30, b"\0bob\0wrong"), authenticated(30, b"", error_code=58))
    passes(t, m.produce(22), m.produced(22))
    assert users(t) == {"alice": 1}
    assert t.counters.authentication_failures == {"refused": 1}


# Unknown users.


KERBEROS = [(b"\x60\x82", b"\x60"), (b"", b"\x05\x04\xff"), (b"\x05\x04\x00", b"")]


def test_login_of_several_unreadable_tokens_counts_once():
    t = transcript()
    log_in(t, "GSSAPI", rounds=KERBEROS)
    assert t.counters.authentications == {"GSSAPI": 1}
    log_in(t, "GSSAPI", rounds=KERBEROS)
    assert t.counters.authentications == {"GSSAPI": 2}


@pytest.mark.parametrize(
    ("mechanism", "rounds"),
    [
        ("GSSAPI", KERBEROS),
        ("SCRAM-SHA-256", [(b"n,,n=dG9rZW4,r=1,tokenauth=true", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2E=", b"v=c2ln")]),
        ("OAUTHBEARER", [(b"n,,\1auth=Bearer opaque\1\1", b"")]),
    ],
    ids=["GSSAPI", "delegation token", "opaque token"],
)
def test_unreadable_user_is_anonymous_and_logged_once(mechanism, rounds, caplog):
    t = transcript(by_user(ANONYMOUS=1_000), required=True)
    with caplog.at_level(logging.WARNING):
        log_in(t, mechanism, rounds=rounds)
        log_in(t, mechanism, rounds=rounds)
    passes(t, m.produce(20), m.produced(20))
    assert users(t) == {"ANONYMOUS": 1}
    (warning,) = caplog.records
    assert mechanism in warning.getMessage()
    assert "ANONYMOUS" in warning.getMessage()


def test_warning_names_rows_that_apply_to_unreadable_users(caplog):
    log_in(transcript(), "GSSAPI", rounds=KERBEROS)
    assert '"user: ANONYMOUS, client-id: NAME"' in caplog.text


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("message", "logged"),
    [
        ("Cannot change principals", "refuses the credentials (Cannot change principals)"),
        ("a\x1b[2J\nERROR", r"refuses the credentials (a\x1b[2J\nERROR)"),
        ("a" * 30_000, f"refuses the credentials ({'a' * 200})"),
    ],
    ids=["short", "control characters", "long"],
)
def test_message_of_broker_is_logged_in_bounds(message, logged, version, caplog):
    t = transcript()
    passes(t, handshake(1, "PLAIN"), handshaken(1))
    token = b"\0alice\0wrong"
    passes(t, authenticate(2, token, version), authenticated(2, b"", version, error_code=58, message=message))
    assert [record.getMessage() for record in caplog.records] == [f"authentication by PLAIN failed: the broker {logged}"]


@pytest.mark.parametrize(("mechanism", "principal"), [("GSSAPI", True), ("PLAIN", False)])
def test_refused_ticket_names_principal_and_clocks(mechanism, principal, caplog):
    t = transcript()
    passes(t, handshake(1, mechanism), handshaken(1))
    passes(t, authenticate(2, b"\x60\x82"), authenticated(2, b"", error_code=58))
    assert "the broker refuses the credentials (no)" in caplog.text
    assert ("kafka/HOST" in caplog.text, "keytab" in caplog.text, "clocks" in caplog.text) == (principal,) * 3


@pytest.mark.parametrize(("mechanism", "rounds"), [("GSSAPI", [(b"\x60\x82", b"\x60")]), ("SCRAM-SHA-256", DELEGATED)])
def test_hidden_name_at_reauthentication_keeps_the_user(mechanism, rounds):
    """Kafka does not allow a change of the principal (KIP-368), so it is still alice, with her own token."""
    t = transcript(by_user(alice=1_000))
    log_in(t)
    log_in(t, mechanism, rounds=rounds)
    passes(t, m.produce(20), m.produced(20))
    assert t.core.client.user == "alice"


UNREADABLE = {
    "PLAIN": [(b"boss\0alice\0secret", b"")],
    "SCRAM-SHA-256": [(b"n,a=boss,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=c2VjcmV0", b"v=c2ln")],
    "OAUTHBEARER": [(b"n,,\1auth=Bearer e30.e30.\1\1", b"")],
}


@pytest.mark.parametrize("mechanism", UNREADABLE)
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_accepted_client_without_a_name_is_refused(mechanism, required, version, caplog):
    t = transcript(by_user(alice=1_000), required=required)
    send_last_token(t, mechanism, UNREADABLE[mechanism], version)
    refused_by_weir(t, 9, version, "finds no user's name")
    assert t.counters.authentication_failures == {"unreadable": 1}
    assert t.counters.authentications == {}
    assert "principal_claim" in caplog.text


def send_last_token(t, mechanism, rounds, version):
    """Log in up to the broker's last answer. The last request has the correlation id 9."""
    *early, (token, answer) = rounds
    log_in(t, mechanism, version=version, rounds=early)
    t.client_sends(authenticate(9, token, version))
    t.broker_answers(authenticated(9, answer, version))


def refused_by_weir(t, correlation_id, version, text):
    """The client gets an authentication error, which it does not try again, and the broker gets no further request."""
    received, t.client_inbox = bytes(t.client_inbox), bytearray()
    answer = codec.decode_response(ApiKey.SASL_AUTHENTICATE, version, received)
    assert struct.unpack_from(">i", received, 4) == (correlation_id,)
    assert (answer["error_code"], answer["auth_bytes"]) == (58, b"")
    assert text in answer["error_message"]
    t.broker_inbox = bytearray()
    assert t.closes_after == 1.0
    t.client_sends_into_the_loop(m.produce(20))
    t.broker_got()


@pytest.mark.parametrize("mechanism", UNREADABLE)
@pytest.mark.parametrize("required", [True, False])
def test_accepted_raw_client_without_a_name_is_closed(mechanism, required, caplog):
    t = transcript(by_user(alice=1_000), required=required)
    passes(t, handshake(1, mechanism, version=0), handshaken(1, version=0))
    *rounds, (token, answer) = UNREADABLE[mechanism]
    for early, early_answer in rounds:
        passes(t, raw(early), raw(early_answer))
    t.client_sends(raw(token))
    with pytest.raises(EndConnection):
        t.broker_answers(raw(answer))
    t.client_got()
    assert t.counters.authentication_failures == {"unreadable": 1}
    assert t.counters.authentications == {}
    assert "principal_claim" in caplog.text


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_hidden_names_can_be_refused_by_config(mechanism, version):
    t = transcript(required=True, close_unnamed=True)
    send_last_token(t, mechanism, HIDDEN[mechanism], version)
    refused_by_weir(t, 9, version, "hides the user's name")
    assert t.counters.authentication_failures == {"unnamed": 1}
    assert t.counters.authentications == {}


@pytest.mark.parametrize("mechanism", ["GSSAPI", "secret"])
@pytest.mark.parametrize("named_before", [False, True])
def test_mechanism_that_hides_names_can_be_refused(mechanism, named_before, caplog):
    """The broker sees no token, and the client gets the mechanisms that work."""
    t = transcript(required=True, close_unnamed=True)
    if named_before:
        log_in(t)
    t.client_sends(handshake(1, mechanism))
    t.broker_got(handshake(1, mechanism))
    t.broker_answers(handshaken(1, mechanisms=["GSSAPI", "PLAIN", "EXTERNAL", "SCRAM-SHA-256"]))
    t.client_got(handshaken(1, error_code=33))
    assert t.closes_after == 1.0
    t.client_sends_into_the_loop(authenticate(2, b"\x60\x82"))
    t.broker_got()
    t.core.close(t.now)
    assert t.counters.authentication_failures == {"unnamed": 1}
    assert "unnamed is close" in caplog.text


def test_broker_without_the_mechanism_refuses_it_itself():
    t = transcript(required=True, close_unnamed=True)
    passes(t, handshake(1, "GSSAPI"), handshaken(1, error_code=33))
    assert t.counters.authentication_failures == {"unsupported_mechanism": 1}
    assert t.closes_after is None


def test_hidden_raw_token_can_be_closed_by_config():
    t = transcript(required=True, close_unnamed=True)
    passes(t, handshake(1, "OAUTHBEARER", version=0), handshaken(1, version=0))
    ((token, answer),) = HIDDEN["OAUTHBEARER"]
    t.client_sends(raw(token))
    with pytest.raises(EndConnection):
        t.broker_answers(raw(answer))
    t.client_got()
    assert t.counters.authentication_failures == {"unnamed": 1}


def test_requests_wait_until_broker_requirement_is_known():
    gate = AuthenticationGate(1_000, None)
    t = Transcript(authentication_gate=gate)
    passes(t, m.api_versions(0), m.versions_are(0, [(0, 3, 13)]))
    t.client_sends(m.produce(1), m.metadata(2))
    assert t.paused
    gate.required = False
    t.core.ready(t.now)
    assert not t.paused
    t.broker_got(m.produce(1), m.metadata(2))


def test_waiting_client_is_refused_once_it_has_to_authenticate():
    gate = AuthenticationGate(1_000, None)
    t = Transcript(authentication_gate=gate)
    t.client_sends(m.produce(1))
    gate.required = True
    with pytest.raises(ProtocolError) as caught:
        t.core.ready(t.now)
    assert caught.value.reason == "not_authenticated"
    t.broker_got()


def test_failed_lookup_keeps_authentication_gate():
    gate = AuthenticationGate(1_000, None)
    gate.looking = False
    t = Transcript(authentication_gate=gate)
    for number in range(3):
        passes(t, m.produce(number), m.produced(number))
    gate.required = True
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(m.produce(4))
    assert caught.value.reason == "not_authenticated"


def test_long_sasl_frame_is_refused_before_lookup():
    t = Transcript(
        handlers=SaslObserver(Counters(), "sub").handler_factories(), authentication_gate=AuthenticationGate(1_000, None)
    )
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(authenticate(1, bytes(1_001)))
    assert caught.value.reason == "not_authenticated_size"


# Missing authentication.


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (m.produce(1), "not_authenticated"),
        (m.fetch(1), "not_authenticated"),
        (m.metadata(1), "not_authenticated"),
        (m.heartbeat(1), "not_authenticated"),
        (authenticate(1, b"\0alice\0secret"), "sasl_order"),
        (handshake(1, "x" * 1_001), "not_authenticated_size"),
        (authenticate(1, bytes(1_001)), "not_authenticated_size"),
        (handshake(1, "GSSAPI", version=0), "sasl_raw_unreadable"),
    ],
    ids=["produce", "fetch", "metadata", "heartbeat", "token", "handshake too long", "token too long", "raw GSSAPI"],
)
@pytest.mark.parametrize("by", [None, 1])
def test_only_sasl_requests_pass_before_authentication(frame, reason, by):
    t = transcript(required=True)
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(frame, by=by)
    assert caught.value.reason == reason
    t.broker_got()
    assert users(t) == {}
    t.core.close(t.now)
    assert t.counters.authentication_failures == {}


def test_long_frame_is_refused_by_its_head():
    t = transcript(required=True)
    with pytest.raises(ProtocolError, match="before authentication"):
        t.client_sends(authenticate(1, bytes(1_001))[:40])


def test_requests_pass_if_authentication_is_optional():
    t = transcript()
    passes(t, m.metadata(1), m.described(1, []))
    passes(t, handshake(2, "PLAIN"), handshaken(2, error_code=34))
    passes(t, m.produce(3), m.produced(3))
    assert users(t) == {"": 1}
    assert t.counters.authentication_failures == {"illegal_state": 1}


@pytest.mark.parametrize("length", [-1, 512 * 1024 + 1, 2**31 - 1])
def test_invalid_raw_token_length_is_refused(length):
    t = transcript()
    passes(t, handshake(1, "PLAIN", version=0), handshaken(1, version=0))
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(struct.pack(">i", length))
    assert caught.value.reason == "raw_length"


def test_invalid_broker_raw_token_length_is_refused():
    t = transcript()
    passes(t, handshake(1, "PLAIN", version=0), handshaken(1, version=0))
    t.client_sends(raw(b"\0alice\0secret"))
    with pytest.raises(ProtocolError) as caught:
        t.broker_answers(struct.pack(">i", -1))
    assert caught.value.reason == "broker_raw_length"


def test_long_token_is_collected():
    t = transcript(required=True, max_bytes=512 * 1024)
    token = b"n,,\1" + b"x" * 300_000 + b"=1\1" + BEARER.partition(b"\1")[2]
    log_in(t, "OAUTHBEARER", rounds=[(token, b"")], by=60_000)
    assert t.core.client.user == "alice"


# Secrets.


@pytest.mark.parametrize("mechanism", ROUNDS)
@pytest.mark.parametrize("way", [log_in, log_in_raw])
def test_secrets_are_neither_kept_nor_logged(mechanism, way, caplog):
    t = transcript(required=True)
    with caplog.at_level(logging.DEBUG):
        way(t, mechanism, by=7)
        passes(t, handshake(2, mechanism), handshaken(2))
        passes(t, authenticate(3, b"\0alice\0secret"), authenticated(3, b"", error_code=58))
        with pytest.raises(ProtocolError) as caught:
            t.client_sends(authenticate(4, b"\0alice\0secret"))
    secrets = ("secret", "c2VjcmV0", "eyJzdWIi")
    texts = caplog.text + repr(caught.value) + str(caught.value)
    assert not any(secret in texts for secret in secrets)
    t.client_inbox = t.broker_inbox = None
    assert not [word for word in reachable(t.core) if any(secret in word for secret in secrets)]


def reachable(root):
    """All texts and byte strings that are reachable from a session, as text."""
    seen, found, pending = set(), [], [root]
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes | bytearray):
            found.append(repr(each))
            continue
        if isinstance(each, dict):
            pending += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset) or type(each).__name__ == "deque":
            pending += each
        if type(each).__module__.startswith(("gateway", "protocol")):
            names = [name for base in type(each).__mro__ for name in getattr(base, "__slots__", ())]
            pending += [getattr(each, name, None) for name in names] + list(getattr(each, "__dict__", {}).values())
    return found


def test_answers_before_the_end_reach_the_client():
    """A producer would send the acknowledged records once more."""
    t = transcript(close_unnamed=True)
    log_in(t)
    passes(t, handshake(1, "OAUTHBEARER"), handshaken(1))
    t.client_sends(m.produce(21), authenticate(30, b"n,,\1auth=Bearer opaque\1\1"))
    t.broker_answers(m.produced(21), authenticated(30, b""))
    assert t.client_inbox.startswith(m.produced(21))
    t.client_inbox = t.client_inbox[len(m.produced(21)) :]
    refused_by_weir(t, 30, 2, "hides the user's name")
