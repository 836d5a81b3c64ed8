"""The topics of mutation requests stay in memory until the broker's answer. All connections together have a budget for them."""

import pytest

from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.creation_by_broker import NAME_BYTES
from gateway.features.controller_mutations.handlers import TOPIC_BYTES, handler_factories
from gateway.proxy.collected import UNCOUNTED_BYTES, CollectBudget
from gateway.proxy.handler import EndConnection
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.features.controller_mutations.test_creation_by_broker import Gateway, asks
from tests.gateway.proxy import messages
from tests.gateway.proxy.transcript import Transcript

MANY = [f"topic-{number}" for number in range(300)]
KEPT = TOPIC_BYTES * len(MANY) - UNCOUNTED_BYTES


def transcript(budget, rate=None):
    limits = {} if rate is None else {"controller_mutation_rate": rate}
    settings = QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits),))
    return Transcript(settings, handlers=handler_factories(KnownTopics()), collect_budget=budget)


def owe(t):
    """Put the client's bucket in debt."""
    t.core.client.use("etl", t.now)
    t.core.client.bucket("controller_mutation", t.now).charge(100, t.now)


def test_topics_count_until_the_answer():
    budget = CollectBudget()
    t = transcript(budget)
    t.client_sends(m.delete(1, MANY, version=5))
    assert budget.answers.held == KEPT
    t.broker_answers(m.answered(m.DELETE, 1, [{"name": name, "error_code": 3} for name in MANY], version=5))
    assert budget.answers.held == 0


def test_topics_count_while_they_are_looked_up():
    budget = CollectBudget()
    t = transcript(budget, rate=1e6)
    t.client_sends(m.delete(1, MANY, version=5))
    t.broker_got(m.metadata_request(1, MANY))
    assert budget.answers.held == KEPT
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(MANY, 3)))
    t.run_ready()
    t.broker_got(m.delete(1, MANY, version=5))
    assert budget.answers.held == KEPT


@pytest.mark.parametrize("version", [4, 5], ids=["deferred", "refused"])
def test_topics_of_an_answered_request_do_not_count(version):
    budget = CollectBudget()
    t = transcript(budget, rate=2.0)
    owe(t)
    t.client_sends(m.delete(1, MANY, version=version))
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(MANY, 3)))
    t.run_ready()
    assert t.paused
    assert budget.answers.held == 0


@pytest.mark.parametrize("version", [3, 12], ids=["deferred", "forwarded"])
def test_names_of_a_metadata_request_count_while_looked_up(version):
    t = Gateway().session()
    budget = t.core.responses.held._budget
    owe(t)
    t.client_sends(asks(MANY, version=version))
    assert budget.held == NAME_BYTES * len(MANY) - UNCOUNTED_BYTES
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(MANY, 0)))
    t.run_ready()
    assert budget.held == 0


def test_connection_with_most_topics_ends_for_another():
    budget = CollectBudget()
    budget.answers.maximum = KEPT
    most, other = transcript(budget), transcript(budget)
    most.client_sends(m.delete(1, MANY, version=5))
    other.client_sends(m.delete(1, MANY[:100], version=5))
    assert isinstance(most.ended, EndConnection)
    assert other.ended is None
    other.broker_got(m.delete(1, MANY[:100], version=5))


def test_requests_before_the_one_beyond_the_budget_are_sent():
    """They are charged, and a client with acks=0 takes them for done."""
    budget = CollectBudget()
    budget.answers.maximum = KEPT - 1
    t = transcript(budget)
    with pytest.raises(EndConnection):
        t.client_sends(messages.produce(1, acks=0), m.delete(2, MANY, version=5))
    t.broker_got(messages.produce(1, acks=0))
