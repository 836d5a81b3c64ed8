"""`quota_admins: broker_acls` on a connection: the broker decides by the client's own rights, before Weir answers."""

import pytest

from gateway.alter_queue import AlterQueue
from gateway.alter_right import RIGHT_TRANSITIONS, RightEvent, RightState
from gateway.features.quota_api.handlers import handler_factories
from gateway.features.quota_api.rules import ListedQuotas, alteration, described
from gateway.proxy.states import IllegalEventError, next_state
from gateway.quotas.entity import ClientQuotaEntity
from gateway.quotas.quota_table import QuotaTable
from gateway.steps import at_once
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.features.quota_api.test_handlers import BROKERS_KEY, KEY, alter, altered, describe, shown
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec

DENIED = "Cluster authorization failed."
ALICE, ANYBODY = {"user": "alice"}, {"user": None}
QUOTAS = {ClientQuotaEntity("alice"): {KEY: 5.0}, ClientQuotaEntity(group="jobs"): {KEY: 7.0}}
VERSIONS = pytest.mark.parametrize("version", [0, 1])


class Session(Transcript):
    """A connection with the real queue. `carry_out` is the part of `QuotaAdmin`."""

    def __init__(self):
        self.queue = AlterQueue("broker_acls")
        super().__init__(handlers=handler_factories(self.queue, self.describe, at_once))

    @staticmethod
    def describe(components, *, strict):
        return described(ListedQuotas(QUOTAS, (), QuotaTable()), components, strict=strict)

    def carry_out(self):
        """Carry out the alterations in the queue, and return their users."""
        tasks = self.queue.take()
        for task in tasks:
            task.alteration = alteration(task.request.entries, lambda _: True)
            task.done()
            self.run_ready()
        return [task.user for task in tasks]

    def broker_was_asked(self, correlation_id):
        self.broker_got(asked(correlation_id))

    def broker_decides(self, correlation_id, error=0, text=None, throttle=0):
        self.broker_answers(altered(correlation_id, (ANYBODY, error, text), version=0, throttle=throttle))


def asked(correlation_id):
    """Weir's own request: it removes the default user's quota, and only for validation."""
    return alter(correlation_id, (ANYBODY, {KEY: None}), version=0, validate_only=True)


@pytest.fixture
def t():
    return Session()


@VERSIONS
@pytest.mark.parametrize("validate_only", [False, True])
def test_granted_alteration_is_carried_out(t, version, validate_only):
    t.client_sends(alter(3, (ALICE, {KEY: 10.0}), version=version, validate_only=validate_only))
    t.broker_was_asked(3)
    assert t.paused
    assert t.carry_out() == []  # nothing is queued before the broker has answered
    t.broker_decides(3)
    t.run_ready()
    t.client_got()
    assert t.carry_out() == ["ANONYMOUS"]
    t.client_got(altered(3, (ALICE, 0, None), version=version))
    t.broker_got()
    assert not t.paused


@VERSIONS
def test_refused_alteration_gets_broker_answer_for_each_entity(t, version):
    entities = [ALICE, {"group": "jobs"}, ALICE, {"client-id": "c", "user": None}]
    t.client_sends(alter(3, *((entity, {KEY: 1.0}) for entity in entities), version=version))
    t.broker_was_asked(3)
    t.broker_decides(3, 31, DENIED, throttle=7)
    t.run_ready()
    t.client_got(altered(3, *((entity, 31, DENIED) for entity in entities), version=version, throttle=7))
    t.broker_got()
    assert t.carry_out() == []


def test_error_that_is_no_refusal_reaches_client(t):
    """The client tries again after a retriable error such as NOT_CONTROLLER, as at the broker."""
    t.client_sends(alter(3, (ALICE, {KEY: 1.0})))
    t.broker_was_asked(3)
    t.broker_decides(3, 41, "This is not the correct controller for this cluster.")
    t.run_ready()
    t.client_got(altered(3, (ALICE, 41, "This is not the correct controller for this cluster.")))
    assert t.carry_out() == []


def test_long_message_of_broker_is_not_repeated(t):
    entities = [{"user": f"u{number}"} for number in range(300)]
    t.client_sends(alter(3, *((entity, {KEY: 1.0}) for entity in entities)))
    t.broker_decides(3, -1, "x" * 1_000)
    t.run_ready()
    t.client_got(altered(3, *((entity, -1, None if number else "x" * 1_000) for number, entity in enumerate(entities))))


def test_each_alteration_asks_again(t):
    """A right may be revoked at any time."""
    for number, (error, answer) in enumerate([(0, None), (31, DENIED), (0, None)]):
        t.client_sends(alter(number, (ALICE, {KEY: 1.0})))
        t.broker_was_asked(number)
        t.broker_decides(number, error, answer)
        t.run_ready()
        assert len(t.carry_out()) == (error == 0)
        t.client_got(altered(number, (ALICE, error, answer)))


def test_broker_part_follows_the_grant(t):
    t.client_sends(alter(3, (ALICE, {KEY: 1.0, BROKERS_KEY: 2.0})))
    t.broker_was_asked(3)
    t.broker_decides(3, throttle=9)
    t.run_ready()
    t.carry_out()
    t.broker_got(alter(3, (ALICE, {BROKERS_KEY: 2.0})))
    t.broker_answers(altered(3, (ALICE, 0, None), throttle=4))
    t.client_got(altered(3, (ALICE, 0, None), throttle=9))


@pytest.mark.parametrize("by", [None, 1, 7])
def test_pipelined_requests_stay_in_order(t, by):
    requests = [m.heartbeat(1), alter(2, (ALICE, {KEY: 1.0})), m.heartbeat(3), alter(4, (ALICE, {KEY: 2.0})), describe(5)]
    t.client_sends(*requests, by=by)
    t.broker_got(m.heartbeat(1), asked(2))
    t.broker_answers(m.beat(1), altered(2, (ANYBODY, 0, None), version=0), by=by)
    t.run_ready()
    t.client_got(m.beat(1))
    t.carry_out()
    t.client_got(altered(2, (ALICE, 0, None)))
    t.broker_got(m.heartbeat(3), asked(4))
    t.broker_answers(m.beat(3), altered(4, (ANYBODY, 31, DENIED), version=0), by=by)
    t.run_ready()
    t.client_got(m.beat(3), altered(4, (ALICE, 31, DENIED)))
    t.broker_got(describe(5))
    t.broker_answers(shown(5, (ALICE, {BROKERS_KEY: 50.0})), by=by)
    t.run_ready()
    t.client_got(shown(5, (ALICE, {KEY: 5.0, BROKERS_KEY: 50.0}), ({"group": "jobs"}, {KEY: 7.0})))


def test_answer_waits_for_earlier_slow_response(t):
    """The broker answers in order, so Weir's question waits behind a long poll of the same connection."""
    t.client_sends(m.heartbeat(1), alter(2, (ALICE, {KEY: 1.0})))
    t.passes(30.0)
    t.client_got()
    t.broker_answers(m.beat(1))
    t.client_got(m.beat(1))
    t.broker_decides(2)
    t.run_ready()
    t.carry_out()
    t.client_got(altered(2, (ALICE, 0, None)))


def test_closed_connection_changes_nothing(t):
    t.client_sends(alter(3, (ALICE, {KEY: 1.0})))
    t.core.close(t.now)
    assert t.carry_out() == []
    assert t.client_inbox == b""


def test_drain_waits_for_decision_and_answer(t):
    t.client_sends(alter(3, (ALICE, {KEY: 1.0})))
    t.ends()
    assert not t.half_closes()
    t.broker_decides(3)
    t.run_ready()
    assert not t.half_closes()
    t.carry_out()
    t.client_got(altered(3, (ALICE, 0, None)))
    assert t.half_closes()


@pytest.mark.parametrize(
    "answer",
    [
        altered(3, version=0),
        altered(3, (ANYBODY, 0, None), (ALICE, 0, None), version=0),
        altered(3, (ANYBODY, 0, None), version=1),
        altered(4, (ANYBODY, 0, None), version=0),
        m.beat(3),
    ],
    ids=["no result", "two results", "another version", "another request", "another API"],
)
def test_garbage_from_broker_ends_connection(t, answer):
    t.client_sends(alter(3, (ALICE, {KEY: 1.0})))
    with pytest.raises(InvalidFrame):
        t.broker_answers(answer)
    assert t.carry_out() == []
    assert t.client_inbox == b""


def test_reload_to_a_list_decides_next_request(t):
    t.client_sends(alter(3, (ALICE, {KEY: 1.0})))
    t.queue.admins = ()
    t.broker_was_asked(3)
    t.broker_decides(3)
    t.run_ready()
    assert len(t.carry_out()) == 1
    t.client_sends(alter(4, (ALICE, {KEY: 1.0})))
    t.broker_got()
    t.client_got(altered(3, (ALICE, 0, None)), altered(4, (ALICE, 31, NOT_LISTED)))


NOT_LISTED = (
    "Cluster authorization failed: User:ANONYMOUS is not one of Weir's quota_admins."
    " It stands for all clients without a name. If clients log in by Kerberos, use quota_admins: broker_acls."
)


def test_decision_is_final():
    for event in RightEvent:
        for state in (RightState.GRANTED, RightState.REFUSED):
            with pytest.raises(IllegalEventError):
                next_state(RIGHT_TRANSITIONS, state, event)


# Long requests.

LONG = 32 * 1024


def long_alteration(size=LONG):
    return alter(3, *(({"user": f"u{number:04}"}, {KEY: 1.0}) for number in range(size // 40)))


@pytest.mark.parametrize("by", [None, 5_000])
def test_long_alteration_is_collected_after_grant(t, by):
    frame = long_alteration(2 * LONG)
    assert LONG < len(frame) < 1 << 20
    t.client_sends(frame[:5_000])
    t.broker_was_asked(3)
    assert t.paused
    t.broker_decides(3)
    t.run_ready()
    t.client_sends(frame[5_000:], by=by)
    t.broker_was_asked(3)  # the collected request is a new one to its handler
    t.broker_decides(3)
    t.run_ready()
    assert len(t.carry_out()) == 1
    assert codec.decode_response(ApiKey.ALTER_CLIENT_QUOTAS, 1, bytes(t.client_inbox))["entries"][-1]["error_code"] == 0


def test_long_alteration_without_right_ends_connection(t):
    t.client_sends(long_alteration(2 * LONG)[:5_000])
    t.broker_decides(3, 31, DENIED)
    with pytest.raises(InvalidFrame, match=r"at most 32768 .* or give User:ANONYMOUS the right .*Cluster authorization failed"):
        t.run_ready()


def test_too_long_alteration_is_refused_before_broker_is_asked(t):
    with pytest.raises(InvalidFrame, match="at most 1048576"):
        t.client_sends((1 << 20).to_bytes(4, "big") + long_alteration()[4:100])
    t.broker_got()


# Descriptions.


@VERSIONS
def test_broker_decides_about_description(t, version):
    t.client_sends(describe(3, version=version))
    t.broker_got(describe(3, version=version))
    t.broker_answers(shown(3, error=31, text=None, version=version, throttle=2))
    t.run_ready()
    t.client_got(shown(3, error=31, text=None, version=version, throttle=2))


@VERSIONS
def test_broker_is_asked_by_another_filter_for_groups(t, version):
    of_groups = ("group", 2, None)
    both_defaults = describe(3, ("user", 1, None), ("client-id", 1, None), strict=True, version=version)
    theirs = ({"user": None, "client-id": None}, {KEY: 1.0})
    for error, text, rows in ((31, None, []), (0, None, [({"group": "jobs"}, {KEY: 7.0})])):
        t.client_sends(describe(3, of_groups, version=version))
        t.broker_got(both_defaults)
        t.broker_answers(shown(3, *([] if error else [theirs]), error=error, text=text, version=version))
        t.run_ready()
        t.client_got(shown(3, *rows, error=error, text=text, version=version))


def test_broker_answers_invalid_filter(t):
    t.client_sends(describe(3, ("x", 0, "y")))
    t.broker_got(describe(3, ("x", 0, "y")))
    t.broker_answers(shown(3, error=35, text="Unsupported entity type x"))
    t.run_ready()
    t.client_got(shown(3, error=35, text="Unsupported entity type x"))


@pytest.mark.parametrize(
    "components", [[("x", 0, "y")], [("group", 2, None), ("group", 2, None)]], ids=["newer type", "groups"]
)
def test_filter_that_only_the_broker_accepts_is_refused(t, components):
    t.client_sends(describe(3, *components))
    t.broker_answers(shown(3, text=None, throttle=6))
    t.run_ready()
    answer = codec.decode_response(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, bytes(t.client_inbox))
    assert (answer["error_code"] in {35, 42}, answer["entries"], answer["throttle_time_ms"]) == (True, None, 6)


def test_connection_has_one_description_at_a_time(t):
    """A chunk with many short answers of the broker would become as many long ones at once."""
    t.client_sends(*(describe(number) for number in range(3)), m.heartbeat(3))
    for number in range(3):
        t.broker_got(describe(number))
        assert t.paused
        t.broker_answers(shown(number, text=None))
        t.client_got()
        t.run_ready()
        t.client_got(shown(number, (ALICE, {KEY: 5.0}), ({"group": "jobs"}, {KEY: 7.0}), text=None))
    t.broker_got(m.heartbeat(3))
    assert not t.paused
