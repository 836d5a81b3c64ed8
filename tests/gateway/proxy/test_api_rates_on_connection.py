"""`request_rates` on one connection: each API has a bucket of its own beside that of all requests."""

import pytest

from gateway.proxy.decision import MAX_OPENED
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_request_rate_on_connection import REQUESTS
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import rows_of

METADATA = "request_rate.Metadata"


def rates(request_rate=None, **by_api):
    """Requests per second of one client-id; the burst is ten seconds' worth."""
    limits = {f"request_rates.{api}": rate for api, rate in by_api.items()}
    limits |= {} if request_rate is None else {"request_rate": request_rate}
    return QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits),))


@pytest.mark.parametrize("api", REQUESTS)
def test_request_over_its_apis_rate_is_answered_then_muted(api):
    ask, answer = REQUESTS[api]
    t = Transcript(rates(**{api: 1.0}))
    for number in range(10):
        t.client_sends(ask(number))
        t.broker_answers(answer(number))
    t.client_got(*map(answer, range(10)))
    t.client_sends(ask(10), ask(11))
    t.broker_answers(answer(10))
    t.broker_got(*map(ask, range(11)))
    t.client_got(answer(10, 1_000))
    t.passes(1.0)
    t.broker_got(ask(11))
    assert t.row(f"request_rate.{api}").amount_total == 12


def test_flood_in_one_chunk_passes_at_its_rate():
    t = Transcript(rates(Metadata=10.0))
    t.client_sends_into_the_loop(*map(m.metadata, range(2_000)))
    t.goes_on()
    opened = MAX_OPENED + 1
    for numbers in (range(opened), range(opened, 101)):  # the burst, and the request that exceeds it
        t.broker_got(*map(m.metadata, numbers))
        t.broker_answers(*(m.described(number, []) for number in numbers))
        t.goes_on()
    for number in range(101, 151):
        t.passes(0.1)
        t.broker_got(m.metadata(number))
        assert t.paused
        t.broker_answers(m.described(number, []))


def test_other_apis_are_not_charged():
    t = Transcript(rates(Metadata=1.0))
    t.client_sends(*(m.heartbeat(number) for number in range(20)), *(m.produce(number) for number in range(20)))
    assert not t.paused
    assert {row.kind: row.amount_total for row in rows_of(t.engine, t.now)}[METADATA] == 0


def test_request_is_charged_to_its_api_and_to_all():
    t = Transcript(rates(2.0, Metadata=1.0))
    t.client_sends(*map(m.metadata, range(12)))
    assert t.core.throttle.cause == "request_rates.Metadata of client-id=etl"
    assert (t.row(METADATA).amount_total, t.row("request_rate").amount_total) == (11, 11)


def test_produce_rate_holds_on_the_fast_path():
    t = Transcript(rates(Produce=1.0))
    for number in range(10):
        t.client_sends(m.produce(number))
    assert t.core.client.hot_buckets
    t.client_sends(m.produce(10))
    assert t.throttled_by == "request_rates.Produce"


def test_new_rate_charges_open_connections():
    t = Transcript()
    t.client_sends(*map(m.metadata, range(20)))
    t.configure(rates(Metadata=1.0))
    t.client_sends(*map(m.metadata, range(20, 31)))
    assert t.paused
    t.configure(rates(Metadata=20.0))
    t.broker_answers(*(m.described(number, []) for number in range(31)))
    t.passes(0.051)
    assert not t.paused


def test_members_of_a_group_share_its_rate():
    group = Group("jobs", (GroupRule(client_id="job-*"),), {"request_rates.Metadata": 1.0})
    engine = QuotaEngine(QuotaSettings((group.quota,), groups=(group,)), START)
    one, other = Transcript(engine=engine), Transcript(engine=engine)
    one.client_sends(*(m.metadata(number, client_id="job-1") for number in range(6)))
    other.client_sends(*(m.metadata(number, client_id="job-2") for number in range(5)))
    assert (one.paused, other.paused) == (False, True)
    (row,) = (row for row in rows_of(engine, START) if row.group)
    assert (row.group, row.kind, row.amount_total, row.limit) == ("jobs", METADATA, 11, 1.0)
