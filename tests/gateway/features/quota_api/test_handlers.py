"""The quota API on a connection: the requests that the broker gets, and the answers that the client gets."""

import pytest

from gateway.alter_queue import AlterTask, denied
from gateway.features.quota_api.handlers import handler_factories
from gateway.features.quota_api.rules import ListedQuotas, alteration, described
from gateway.quotas.entity import ClientQuotaEntity
from gateway.quotas.quota_table import QuotaTable
from gateway.steps import at_once
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec
from tests.protocol.samples import with_length

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
KEY, BROKERS_KEY = "producer_byte_rate", "request_percentage"
QUOTAS = {ClientQuotaEntity("alice"): {KEY: 5.0}}
DENIED = (
    "Cluster authorization failed: User:ANONYMOUS is not one of Weir's quota_admins."
    " It stands for all clients without a name. If clients log in by Kerberos, use quota_admins: broker_acls."
)


def test_refusal_of_a_named_user_has_a_remedy():
    assert denied("bob") == (
        "Cluster authorization failed: User:bob is not one of Weir's quota_admins."
        " Add it to that list, or use quota_admins: broker_acls."
    )


class Api:
    """An `AlterQueue` that ends an alteration when the test calls `finish`."""

    def __init__(self, allowed=True):
        self.allowed = allowed
        self.tasks = []
        self.undone = []

    def allows(self, user):
        assert user == "ANONYMOUS"
        return self.allowed

    def alter(self, request, user, done):
        self.tasks.append(AlterTask(request, user, done))
        return self.tasks[-1]

    def undo(self, task, entity):
        self.undone.append((task, entity))

    def describe(self, components, *, strict):
        return described(ListedQuotas(QUOTAS, (), QuotaTable()), components, strict=strict)

    def finish(self):
        task = self.tasks[-1]
        task.alteration = alteration(task.request.entries, lambda ip: True)
        task.done()


def opened(allowed=True, later=at_once):
    api = Api(allowed)
    return Transcript(handlers=handler_factories(api, api.describe, later)), api


def parts(names):
    return [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]


def describe(correlation_id, *components, version=1, strict=False):
    filters = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return codec.encode_request(DESCRIBE, version, {"components": filters, "strict": strict}, correlation_id, "admin")


def shown(correlation_id, *rows, version=1, error=0, text="", throttle=0):
    entries = [{"entity": parts(e), "values": [{"key": k, "value": v} for k, v in values.items()]} for e, values in rows]
    body = {"throttle_time_ms": throttle, "error_code": error, "error_message": text, "entries": None if error else entries}
    return codec.encode_response(DESCRIBE, version, body, correlation_id)


def alter(correlation_id, *rows, version=1, validate_only=False):
    entries = [
        {
            "entity": parts(entity),
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
        }
        for entity, ops in rows
    ]
    return codec.encode_request(ALTER, version, {"entries": entries, "validate_only": validate_only}, correlation_id, "admin")


def altered(correlation_id, *rows, version=1, throttle=0):
    entries = [{"error_code": code, "error_message": text, "entity": parts(entity)} for entity, code, text in rows]
    return codec.encode_response(ALTER, version, {"throttle_time_ms": throttle, "entries": entries}, correlation_id)


@pytest.mark.parametrize("version", [0, 1])
def test_description_joins_weir_and_other_broker_quotas(version):
    t, _ = opened()
    t.client_sends(describe(1, version=version))
    t.broker_got(describe(1, version=version))
    theirs = [
        ({"user": "alice"}, {KEY: 9.0, BROKERS_KEY: 50.0}),
        ({"client-id": "c"}, {KEY: 9.0}),
        ({"user": None}, {"new": 1.0}),
    ]
    t.broker_answers(shown(1, *theirs, version=version, throttle=3))
    t.run_ready()
    ours = [({"user": "alice"}, {KEY: 5.0, BROKERS_KEY: 50.0}), ({"user": None}, {"new": 1.0})]
    t.client_got(shown(1, *ours, version=version, throttle=3))


def test_filter_applies_to_weir_quotas():
    t, _ = opened()
    t.client_sends(describe(1, ("user", 1, None), strict=True))
    t.broker_answers(shown(1))
    t.run_ready()
    t.client_got(shown(1))


@pytest.mark.parametrize("version", [0, 1])
def test_broker_is_not_asked_for_groups(version, monkeypatch):
    monkeypatch.setitem(QUOTAS, ClientQuotaEntity(group="jobs"), {KEY: 7.0})
    t, _ = opened()
    t.client_sends(describe(1, ("group", 2, None), version=version))
    t.broker_got()
    t.run_ready()
    t.client_got(shown(1, ({"group": "jobs"}, {KEY: 7.0}), version=version, text=None))


def test_broker_refusal_to_describe_passes_through():
    t, _ = opened()
    t.client_sends(describe(1))
    t.broker_answers(shown(1, error=31, text="Cluster authorization failed."))
    t.run_ready()
    t.client_got(shown(1, error=31, text="Cluster authorization failed."))


@pytest.mark.parametrize("version", [0, 1])
def test_invalid_filter_is_answered_locally(version):
    t, _ = opened()
    t.client_sends(m.heartbeat(1), describe(2, ("x", 0, "y"), version=version))
    t.broker_got(m.heartbeat(1))
    t.broker_answers(m.beat(1))
    t.client_got(m.beat(1), shown(2, version=version, error=35, text="Unsupported entity type x"))


@pytest.mark.parametrize("version", [0, 1])
def test_client_that_is_no_admin_never_reaches_broker(version):
    t, api = opened(allowed=False)
    entity = {"client-id": "c", "user": None}
    t.client_sends(describe(1, version=version), alter(2, (entity, {KEY: 1.0, BROKERS_KEY: 1.0}), version=version))
    t.broker_got()
    t.client_got(shown(1, version=version, error=31, text=DENIED), altered(2, (entity, 31, DENIED), version=version))
    assert api.tasks == []


@pytest.mark.parametrize("version", [0, 1])
def test_refusal_names_every_entity_and_one_reason(version):
    t, _ = opened(allowed=False)
    entities = [{"user": f"u{number}"} for number in range(400)]
    request = alter(1, *((entity, {KEY: 1.0}) for entity in entities), version=version)
    t.client_sends(request)
    answer = altered(1, *((e, 31, None if number else DENIED) for number, e in enumerate(entities)), version=version)
    t.client_got(answer)
    assert len(answer) < len(request)


def test_refused_description_is_not_parsed():
    t, _ = opened(allowed=False)
    frame = describe(1, ("user", 1, None))
    t.client_sends(frame.replace(b"\5user", b"\x7fuser"))
    t.client_got(shown(1, error=31, text=DENIED))


@pytest.mark.parametrize(("allowed", "limit", "remedy"), [(True, 1 << 20, "fewer entities"), (False, 32 << 10, "quota_admins")])
def test_alteration_over_users_size_limit_ends_connection(allowed, limit, remedy):
    head = alter(1, ({"user": "a" * 100}, {KEY: 1.0}))[4:100]
    t, _ = opened(allowed=allowed)
    t.client_sends((limit - 4).to_bytes(4, "big") + head)
    t, _ = opened(allowed=allowed)
    with pytest.raises(InvalidFrame, match=f"a request of {limit + 1} bytes, at most {limit} .*{remedy}"):
        t.client_sends((limit - 3).to_bytes(4, "big") + head)


@pytest.mark.parametrize("version", [0, 1])
def test_alteration_is_answered_after_it_applies(version):
    t, api = opened()
    t.client_sends(alter(1, ({"user": "alice"}, {KEY: 10.0}), version=version), m.heartbeat(2))
    assert t.paused
    t.client_got()
    t.broker_got()
    api.finish()
    t.run_ready()
    t.client_got(altered(1, ({"user": "alice"}, 0, None), version=version))
    t.broker_got(m.heartbeat(2))
    assert not t.paused


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("validate_only", [True, False])
def test_alteration_of_both_merges_local_and_broker_answers(version, validate_only):
    t, api = opened()
    alice, bob, carol, dave = ({"user": name} for name in ("alice", "bob", "carol", "dave"))
    rows = (
        (alice, {KEY: 10.0, BROKERS_KEY: 1.0}),
        (bob, {KEY: 0.0, BROKERS_KEY: 1.0}),
        (carol, {BROKERS_KEY: None}),
        (dave, {KEY: 1.0}),
    )
    t.client_sends(alter(1, *rows, version=version, validate_only=validate_only))
    api.finish()
    t.run_ready()
    entries = (alice, {BROKERS_KEY: 1.0}), (carol, {BROKERS_KEY: None})
    t.broker_got(alter(1, *entries, version=version, validate_only=validate_only))
    t.client_got()
    t.broker_answers(altered(1, (carol, 0, None), (alice, 31, "not you"), version=version, throttle=4))
    results = (alice, 31, "not you"), (bob, 42, f"Quota {KEY} must be greater than 0"), (carol, 0, None), (dave, 0, None)
    t.client_got(altered(1, *results, version=version, throttle=4))
    assert [(task.request.validate_only, dict(entity)) for task, entity in api.undone] == [(validate_only, alice)]


@pytest.mark.parametrize("version", [0, 1])
def test_message_about_a_long_name_is_cut(version):
    """Otherwise no answer fits, although the broker has altered another entity."""
    t, api = opened()
    long, alice = {"t" * 32_767: "x"}, {"user": "alice"}
    t.client_sends(alter(1, (long, {KEY: 1.0}), (alice, {BROKERS_KEY: 1.0}), version=version))
    api.finish()
    t.run_ready()
    t.broker_got(alter(1, (alice, {BROKERS_KEY: 1.0}), version=version))
    t.broker_answers(altered(1, (alice, 0, None), version=version))
    message = ("Unhandled client quota entity type: " + "t" * 32_767)[:32_767]
    t.client_got(altered(1, (long, 42, message), (alice, 0, None), version=version))


@pytest.mark.parametrize("version", [0, 1])
def test_name_too_long_to_answer_ends_client_at_once(version):
    t, _ = opened()
    frame = alter(1, ({"user": "x" * 11_000}, {KEY: 1.0}), ({"user": "alice"}, {BROKERS_KEY: 1.0}), version=version)
    with pytest.raises(InvalidFrame, match="not UTF-8"):
        t.client_sends(frame.replace(b"x" * 11_000, b"\xff" * 11_000))
    t.broker_got()


def test_malformed_alteration_ends_connection():
    t, _ = opened()
    frame = alter(1, ({"user": "alice"}, {KEY: 10.0}), version=0)
    with pytest.raises(InvalidFrame):
        t.client_sends(frame.replace(b"\0\4user", b"\7\4user"))


def test_malformed_broker_answer_ends_connection():
    t, _ = opened()
    t.client_sends(describe(1))
    with pytest.raises(InvalidFrame):
        t.broker_answers(m.beat(1))


@pytest.mark.parametrize("version", [0, 1])
def test_malformed_entity_of_broker_is_an_error_of_the_answer(version):
    t, _ = opened()
    t.client_sends(describe(1, version=version))
    frame = shown(1, ({"user": "alice"}, {BROKERS_KEY: 50.0}), version=version)
    null = with_length(frame[4:].replace(b"\0\4user", b"\xff\xff") if version == 0 else frame[4:].replace(b"\5user", b"\0"))
    t.broker_answers(null)
    t.run_ready()
    assert b"Weir can not read the broker's answer: " in t.client_inbox


def test_long_description_lets_other_work_pass():
    waiting = []
    t, _ = opened(later=waiting.append)
    t.client_sends(describe(1))
    t.broker_answers(shown(1, ({"user": "bob"}, {BROKERS_KEY: 50.0})))
    (steps,) = waiting
    assert sum(1 for _ in steps) >= 4
    t.run_ready()
    t.client_got(shown(1, ({"user": "alice"}, {KEY: 5.0}), ({"user": "bob"}, {BROKERS_KEY: 50.0})))


def test_exact_description_waits_for_no_longer_one():
    waiting = []
    t, _ = opened(later=waiting.append)
    t.client_sends(describe(1, ("user", 0, "alice"), strict=True))
    t.broker_answers(shown(1))
    t.run_ready()
    t.client_got(shown(1, ({"user": "alice"}, {KEY: 5.0})))
    assert waiting == []


def test_description_ends_with_its_connection():
    waiting = []
    t, _ = opened(later=waiting.append)
    t.client_sends(describe(1))
    t.broker_answers(shown(1, ({"user": "bob"}, {BROKERS_KEY: 50.0})))
    (steps,) = waiting
    next(steps)
    t.core.close(t.now)
    assert list(steps) == []


def test_bug_in_a_description_ends_the_connection():
    class Bug(Exception):
        pass

    class Broken(Api):
        def describe(self, components, *, strict):
            raise Bug

    api = Broken()
    t = Transcript(handlers=handler_factories(api, api.describe, at_once))
    t.client_sends(describe(1))
    t.broker_answers(shown(1))
    with pytest.raises(Bug):
        t.run_ready()
