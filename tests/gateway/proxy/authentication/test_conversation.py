import pytest

from gateway.proxy.authentication import Authentication, Outcome, Step
from protocol.errors import OutOfTurn, ProtocolError

TOKENS = {
    "PLAIN": [(b"\0alice\0secret", b"")],
    "SCRAM-SHA-256": [(b"n,,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=cHJvb2Y=", b"v=c2ln")],
    "SCRAM-SHA-512": [(b"n,,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=cHJvb2Y=", b"v=c2ln")],
    "OAUTHBEARER": [(b"n,,\1auth=Bearer e30.eyJzdWIiOiJhbGljZSJ9.\1\1", b"")],
}


def begun(mechanism, version=1):
    conversation = Authentication("ANONYMOUS")
    conversation.client_asks(mechanism, version)
    assert conversation.broker_agrees(0).step is Step.GOES_ON
    return conversation


def go_through(conversation, mechanism):
    for client, broker in TOKENS[mechanism]:
        conversation.client_sends(client)
        outcome = conversation.broker_answers(0, broker)
    return outcome


@pytest.mark.parametrize("mechanism", TOKENS)
def test_successful_authentication_names_user(mechanism):
    conversation = begun(mechanism)
    claims = frozenset({("sub", "alice")} if mechanism == "OAUTHBEARER" else ())
    assert go_through(conversation, mechanism) == Outcome(Step.SUCCEEDED, mechanism, "alice", named=True, claims=claims)
    assert not conversation.unfinished


@pytest.mark.parametrize("mechanism", TOKENS)
@pytest.mark.parametrize(
    ("code", "reason"), [(58, "refused"), (34, "illegal_state"), (33, "unsupported_mechanism"), (-1, "broker_error")]
)
def test_broker_refusal_is_final_in_every_round(mechanism, code, reason):
    for rounds in range(len(TOKENS[mechanism])):
        conversation = begun(mechanism)
        for client, broker in TOKENS[mechanism][:rounds]:
            conversation.client_sends(client)
            conversation.broker_answers(0, broker)
        conversation.client_sends(TOKENS[mechanism][rounds][0])
        assert conversation.broker_answers(code, b"") == Outcome(Step.FAILED, mechanism, reason=reason)
        with pytest.raises(OutOfTurn):
            conversation.client_sends(b"\0alice\0secret")


def test_mechanism_unknown_to_broker_fails():
    conversation = Authentication("ANONYMOUS")
    conversation.client_asks("PLAIN", 1)
    assert conversation.broker_agrees(33) == Outcome(Step.FAILED, "PLAIN", reason="unsupported_mechanism")
    conversation.client_asks("SCRAM-SHA-256", 1)  # some brokers let it try another one
    conversation.broker_agrees(0)
    assert go_through(conversation, "SCRAM-SHA-256").user == "alice"


def test_proof_without_broker_signature_is_refused():
    conversation = begun("SCRAM-SHA-256")
    (first, salt), (proof, _) = TOKENS["SCRAM-SHA-256"]
    conversation.client_sends(first)
    conversation.broker_answers(0, salt)
    conversation.client_sends(proof)
    assert conversation.broker_answers(0, b"e=other-error").reason == "refused"


def test_client_reauthenticates_as_another_user():
    conversation = begun("SCRAM-SHA-256")
    go_through(conversation, "SCRAM-SHA-256")
    conversation.client_asks("PLAIN", 1)
    conversation.broker_agrees(0)
    conversation.client_sends(b"\0bob\0secret")
    assert conversation.broker_answers(0, b"").user == "bob"


@pytest.mark.parametrize(
    ("mechanism", "tokens"),
    [
        ("PLAIN", [(b"boss\0alice\0secret", b"")]),
        ("SCRAM-SHA-256", [(b"n,a=boss,n=alice,r=1", b"r=12,s=c2E=,i=4096"), (b"c=biws,r=12,p=cHJvb2Y=", b"v=c2ln")]),
        ("OAUTHBEARER", [(b"n,,\1auth=Bearer e30.e30.\1\1", b"")]),
    ],
)
def test_accepted_token_without_a_name_is_unreadable(mechanism, tokens):
    conversation = begun(mechanism)
    for client, broker in tokens:
        conversation.client_sends(client)
        outcome = conversation.broker_answers(0, broker)
    assert outcome == Outcome(Step.UNREADABLE, mechanism, reason="unreadable")
    assert not conversation.unfinished


def test_hidden_name_keeps_earlier_user():
    conversation = begun("PLAIN")
    go_through(conversation, "PLAIN")
    conversation.client_asks("SCRAM-SHA-256", 1)
    conversation.broker_agrees(0)
    conversation.client_sends(b"n,,n=dG9rZW4,r=1,tokenauth=true")
    conversation.broker_answers(0, b"r=12,s=c2E=,i=4096")
    conversation.client_sends(b"c=biws,r=12,p=cHJvb2Y=")
    assert conversation.broker_answers(0, b"v=c2ln") == Outcome(Step.SUCCEEDED, "SCRAM-SHA-256", "alice")


@pytest.mark.parametrize(
    ("mechanism", "kept"), [("GSSAPI", "GSSAPI"), ("EXTERNAL", "EXTERNAL"), ("secret", "other"), ("", "other")]
)
def test_unreadable_mechanism_passes_as_anonymous(mechanism, kept):
    conversation = begun(mechanism)
    for token, first in [(b"\x60\x82", True), (b"", False), (b"\x05\x04", False)]:
        conversation.client_sends(token)
        assert conversation.broker_answers(0, token) == Outcome(Step.SUCCEEDED, kept, "ANONYMOUS", first=first)
    conversation.client_asks(mechanism, 1)


@pytest.mark.parametrize(("version", "raw"), [(0, True), (1, False)])
def test_raw_tokens_follow_handshake_v0(version, raw):
    conversation = Authentication("ANONYMOUS")
    assert not conversation.raw_token_due
    conversation.client_asks("SCRAM-SHA-256", version)
    assert not conversation.raw_token_due
    conversation.broker_agrees(0)
    for client, broker in TOKENS["SCRAM-SHA-256"]:
        assert conversation.raw_token_due is raw
        conversation.client_sends(client)
        assert conversation.unfinished
        assert not conversation.raw_token_due
        conversation.broker_answers(0, broker)
    assert not conversation.raw_token_due


@pytest.mark.parametrize("mechanism", ["GSSAPI", "secret"])
def test_raw_tokens_of_unreadable_mechanism_are_refused(mechanism):
    conversation = Authentication("ANONYMOUS")
    with pytest.raises(ProtocolError, match="raw tokens") as caught:
        conversation.client_asks(mechanism, 0)
    assert caught.value.reason == "sasl_raw_unreadable"
    assert not conversation.unfinished, "the broker was never asked"


def test_message_out_of_turn_is_refused():
    conversation = Authentication("ANONYMOUS")
    with pytest.raises(OutOfTurn):
        conversation.client_sends(b"\0alice\0secret")
    conversation.client_asks("PLAIN", 1)
    with pytest.raises(OutOfTurn):
        conversation.client_asks("PLAIN", 1)
    conversation.broker_agrees(0)
    conversation.client_sends(b"\0alice\0secret")
    with pytest.raises(OutOfTurn) as caught:
        conversation.client_sends(b"\0alice\0secret")
    assert "secret" not in str(caught.value)
