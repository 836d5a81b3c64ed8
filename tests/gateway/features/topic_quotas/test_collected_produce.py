"""The charge for a Produce that is collected, as topic quotas are over the total: paid as it arrives, and never given back."""

import pytest

from gateway.proxy.collected import UNCOUNTED_BYTES, CollectBudget
from gateway.proxy.handler import EndConnection
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from protocol.errors import InvalidFrame
from tests.gateway.features.topic_quotas.test_produce_inspector import COLD, HOT, Metered, produce, produced
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import rows_of

OWN = "__weir_usage"
ENDLESS_ID = b"\xff\xff\xff\x7f"  # the length of a transactional id that is longer than any frame


def malformed(size):
    request = produce(1, (COLD, {0: b"x" * size}))
    body = request.index(b"etl\0") + 4
    return request[:body] + ENDLESS_ID + request[body + len(ENDLESS_ID) :]


def tokens(t):
    return t.core.client.bucket("produce", t.now).meter.tokens(t.now)


def test_malformed_request_stays_charged():
    t = Metered(limits(produce=1_000))
    t.goes_over()
    request = malformed(50_000)
    t.client_sends(request[:40_004])
    t.client_sends(request[40_004:])
    with pytest.raises(InvalidFrame, match="a count of"):
        t.goes_on()
    assert (t.row().amount_total, tokens(t)) == (40_000, 10_000 - 40_000)


def test_malformed_request_erases_no_debt():
    """A bucket forgets the debt above an hour, so it takes less from a large request than the request has."""
    t = Metered(limits(produce=100))
    t.client_sends(produce(1, (COLD, {0: b"x"})))  # the connection's first request, which would wait for a debt
    t.broker_answers(produced(1, (COLD, {0: 0})))
    other = Transcript(engine=t.engine)
    other.client_sends(m.produce(1, size=400_000))
    assert tokens(t) == -360_000
    t.goes_over()
    t.client_sends(malformed(400_000), by=50_000)
    with pytest.raises(InvalidFrame, match="a count of"):
        t.goes_on()
    assert tokens(t) == -360_000


@pytest.mark.parametrize("by", [None, 700])
def test_client_is_muted_for_all_bytes_of_its_request(by):
    t = Metered(limits(produce=1_000))
    t.goes_over()
    request = produce(1, (COLD, {0: b"x" * 12_000}))
    t.client_sends(request, by=by)
    t.goes_on()
    t.broker_got(request)
    assert t.paused
    t.broker_answers(produced(1, (COLD, {0: 0})))
    t.client_got(produced(1, (COLD, {0: 0}), throttle_time_ms=len(request) - 4 - 10_000))


def test_rate_of_requests_counts_a_collected_request_once():
    rates = {"producer_byte_rate": 1_000.0, "request_rates.Produce": 5.0}
    t = Metered(QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), rates),)))
    t.goes_over()
    request = produce(1, (COLD, {0: b"x" * 2_000}))
    t.client_sends(request, by=500)
    assert t.row().amount_total == len(request) - 4
    assert [row.amount_total for row in rows_of(t.engine, t.now) if row.kind != "produce"] == [1]


def test_request_keeps_its_buckets_while_it_is_collected():
    t = Metered(limits(produce=1_000))
    t.goes_over()
    request = produce(1, (COLD, {0: b"x" * 2_000}))
    t.client_sends(request[:1_004])
    t.configure(QuotaSettings())
    t.client_sends(request[1_004:])
    t.broker_got(request)
    assert t.row().amount_total == len(request) - 4


def test_bytes_stay_charged_if_a_pause_begins():
    gate = ProduceGate()
    t = Metered(limits(produce=1_000), gate=gate)
    t.goes_over()
    request = produce(1, (COLD, {0: b"x" * 2_000}))
    t.client_sends(request[:1_004])
    gate.delay, gate.paused = 5.0, True
    t.client_sends(request[1_004:])
    t.broker_got()
    assert t.row().amount_total == 1_000
    gate.delay, gate.paused = 0.0, False
    t.passes(5.0)
    t.client_sends(produce(2, (HOT, {0: b"z"})))
    assert t.row().amount_total == 1_000 + len(produce(2, (HOT, {0: b"z"}))) - 4


@pytest.mark.parametrize("by", [None, 100])
def test_collected_request_to_own_topic_is_free(by):
    own = OwnTopics([OWN], START)
    t = Metered(limits(produce=100), own_topics=own)
    t.goes_over()
    request = m.produce(1, size=2_000, topics=(OWN,))
    t.client_sends(request, by=by)
    t.broker_got(request)
    assert sum(row.amount_total for row in rows_of(t.engine, t.now) if row.kind == "produce") == 0
    assert not t.paused


def test_request_behind_a_dropped_one_is_charged():
    t = Metered(limits(produce=1_000))
    t.goes_over()
    request, behind = produce(1, (COLD, {0: b"x" * 2_000})), produce(2, (COLD, {0: b"z" * 50}), acks=0)
    t.client_sends(request[:1_004])
    t.ends()
    assert t.half_closes()
    t.client_sends(request[1_004:], behind, by=100)
    t.broker_got(produce(2, (COLD, {0: b"z" * 50}), acks=1))
    last = (len(request) - 1_004) % 100  # its last chunk is charged only if the request is taken
    assert t.row().amount_total == len(request) - 4 - last + len(behind) - 4


@pytest.mark.parametrize("acks", [-1, 0])
def test_topics_of_unanswered_requests_have_a_budget(acks):
    budget = CollectBudget()
    t = Metered(collect_budget=budget)
    names = [f"topic-{number:04}" for number in range(1_000)]
    request = produce(1, *[(name, {0: None}) for name in names], acks=acks)
    kept = len(names) * (len(names[0]) + 16)
    t.client_sends(request[:-2], by=1_000)
    assert budget.answers.held == kept - UNCOUNTED_BYTES
    t.client_sends(request[-2:])
    assert budget.answers.held == kept - UNCOUNTED_BYTES
    t.broker_answers(produced(1, *[(name, {0: 0}) for name in names]))
    assert budget.answers.held == 0


def test_topics_of_forwarded_parts_have_a_budget():
    budget = CollectBudget()
    t = Metered(collect_budget=budget)
    t.goes_over()
    names = [f"topic-{number:04}" for number in range(1_000)]
    t.client_sends(produce(1, (HOT, {0: b"x"}), *[(name, {0: None}) for name in names]))
    t.goes_on()
    assert budget.answers.held > 0
    t.broker_answers(produced(1, *[(name, {0: 0}) for name in names]))
    assert budget.answers.held == 0


def test_unfinished_requests_of_one_client_end_before_others():
    budget = CollectBudget()
    budget.answers.maximum = 30_000
    most, few = Metered(collect_budget=budget), Metered(collect_budget=budget)
    few.client_sends(produce(1, (COLD, {0: b"x"})))
    most.client_sends(produce(1, *[(f"topic-{number:04}", {0: None}) for number in range(5_000)])[:-2])
    with pytest.raises(EndConnection, match="requests without an answer") as raised:
        most.goes_on()
    assert raised.value.limit == "collected_bytes"
    few.broker_answers(produced(1, (COLD, {0: 0})))
    few.client_got(produced(1, (COLD, {0: 0})))
