"""Shadow limits on a connection: the client and the broker get every byte at once, and the limits count."""

import pytest

from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.ledger.fold import ThrottleFolds
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_fetch_handler import mixed
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.protocol import codec

SHADOW = {
    "producer_byte_rate": 10.0,
    "consumer_byte_rate": 10.0,
    "request_rate": 0.1,
    "request_rates.Metadata": 0.1,
    "controller_mutation_rate": 0.1,
}
"""A burst is the amount of ten seconds; eleven for mutations."""
GROUP = Group("all", (GroupRule(user="*"),), shadow=SHADOW)


def settings(*, real=None, **rest):
    row = EntityQuota(ClientQuotaEntity(None, "etl"), real or {}, shadow=SHADOW)
    return QuotaSettings((row, GROUP.quota), groups=(GROUP,), **rest)


def transcript(of=None, recorder=None):
    handlers = mutations.handler_factories(KnownTopics())
    return Transcript(engine=EngineWithShadows(of or settings(), START), handlers=handlers, recorder=recorder)


def shadows(t, kind):
    return [row for row in rows_of(t.engine, t.now) if row.shadow and row.kind == kind and (row.client_id or row.group)]


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
@pytest.mark.parametrize("by", [None, 1, 70])
def test_requests_over_a_shadow_pass_at_once(algorithm, by):
    t = transcript(settings(algorithm=algorithm))
    for round_ in range(3):
        number = 10 * round_
        requests = [
            *(m.produce(number + each, size=400) for each in range(3)),
            m.fetch(number + 3),
            m.fetch(number + 4),
            m.share_fetch(number + 5),
            m.share_fetch(number + 6),
            m.metadata(number + 7),
        ]
        t.client_sends(*requests, by=by)
        t.broker_got(*requests)
        answers = [*(m.produced(number + each) for each in range(3)), m.fetched(number + 3, size=500), m.fetched(number + 4)]
        t.broker_answers(*answers, by=by)
        t.client_got(*answers)
        shared = {"responses": [], "node_endpoints": []}
        answers = [codec.encode_response(ApiKey.SHARE_FETCH, 1, shared, number + each) for each in (5, 6)]
        t.broker_answers(*answers, m.described(number + 7, []), by=by)
        t.client_inbox.clear()
    assert not t.paused
    for kind in ("produce", "fetch", "request_rate"):
        assert [row.throttled_total > 0 for row in shadows(t, kind)] == [True, True], kind


def test_new_connection_waits_for_no_shadow():
    first = transcript()
    first.client_sends(m.produce(1, size=5_000))
    second = Transcript(engine=first.engine)
    second.client_sends(m.produce(1, size=5_000))
    second.broker_got(m.produce(1, size=5_000))


@pytest.mark.parametrize("version", [*mutation_session.PERMISSIVE.values(), 7])
def test_mutations_over_a_shadow_are_forwarded_unchanged(version):
    t = transcript()
    for number in range(2):
        request = mutation_session.create(number, {f"a{number}": 30, f"b{number}": 40}, version=version)
        t.client_sends(request)
        t.broker_got(request)
        results = [{"name": f"{name}{number}", "num_partitions": count} for name, count in (("a", 30), ("b", 40))]
        t.broker_answers(mutation_session.answered(mutation_session.CREATE, number, results, version=version))
    assert [row.throttled_total for row in shadows(t, "controller_mutation")] == [2, 2]


def test_real_limit_on_mutations_is_enforced_beside_a_shadow():
    t = transcript(settings(real={"controller_mutation_rate": 2.0}))
    controller = mutation_session.Controller(t)
    for number in range(2):
        t.client_sends(mutation_session.create(number, {f"a{number}": 60}))
        controller.serve()
    (real,) = (row for row in rows_of(t.engine, t.now) if row.kind == "controller_mutation" and not row.shadow)
    assert (real.throttled_total, real.unenforced_total, real.amount_total) == (1, 0, 60)
    assert [row.amount_total for row in shadows(t, "controller_mutation")] == [60, 60]


def test_real_limit_mutes_for_its_own_time():
    t = transcript(settings(real={"producer_byte_rate": 100}))
    t.client_sends(m.produce(1, size=1_200))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=2_000))
    assert t.paused
    t.passes(2.0)
    assert not t.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_shadows_count_only_responses_that_are_sent(algorithm):
    t = transcript(settings(real={"consumer_byte_rate": 1_000}, algorithm=algorithm))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched(1, size=10_500))
    sent = algorithm == "token_bucket"
    assert (len(t.client_inbox) > 10_000) == sent
    assert [row.amount_total for row in shadows(t, "fetch")] == ([10_500, 10_500] if sent else [0, 0])
    assert [row.throttled_total for row in shadows(t, "fetch")] == ([1, 1] if sent else [0, 0])


def test_shadows_count_the_sent_part_of_a_response():
    t = transcript(settings(real={"consumer_byte_rate": 1_000}, algorithm="window"))
    t.client_sends(m.fetch(1, session=(77, 3)))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(10_000, t.now)
    t.broker_answers(mixed(1, [0]))
    size = len(mixed(1, [])) - 5
    assert [row.amount_total for row in shadows(t, "fetch")] == [size, size]


def test_throttles_of_shadows_are_not_among_those_of_the_ledger():
    recorder = ThrottleFolds()
    t = transcript(settings(real={"producer_byte_rate": 100}), recorder)
    t.client_sends(m.produce(1, size=1_200))
    (event,) = recorder.take("weir-0", t.now, t.now)
    assert (event.limit, event.count, event.enforced) == (100, 1, True)


def test_addresses_of_a_shadow_are_remembered():
    t = transcript()
    t.core.throttle.origin.address = "10.0.0.7"
    t.client_sends(m.produce(1, size=1_200))
    assert [row.addresses for row in shadows(t, "produce")] == [("10.0.0.7",), ("10.0.0.7",)]


def test_heartbeats_of_members_are_free_under_a_shadow():
    t = transcript()
    for number in range(3):
        t.client_sends(m.heartbeat(number))
        t.broker_answers(codec.encode_response(ApiKey.HEARTBEAT, 4, {"error_code": 0, "throttle_time_ms": 0}, number))
        t.passes(3.0)
    # The first heartbeat proves the membership.
    assert [row.amount_total for row in shadows(t, "request_rate")] == [1, 1]
