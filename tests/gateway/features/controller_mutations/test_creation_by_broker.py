"""Metadata requests whose missing topics brokers create, under a quota of 2 partitions per second and a burst of 22.

The brokers' num.partitions is 10.
"""

import pytest

from gateway.features.controller_mutations.costs import CREATION_SECONDS, KnownTopics
from gateway.features.controller_mutations.creation_by_broker import metadata_factory
from gateway.features.controller_mutations.handlers import handler_factories
from gateway.features.controller_mutations.under_way import LONGEST_SECONDS, UnderWay
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from protocol.bodies.metadata_request import CREATION_SINCE
from protocol.bodies.topic_metadata import TOPICS_PER_REQUEST
from protocol.cursor import MAX_ELEMENTS
from protocol.errors import InvalidFrame
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.features.controller_mutations.mutation_session import reserved, tokens
from tests.gateway.proxy import messages
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec

BURST = 22
PARTITIONS = 10
VERSIONS = [CREATION_SINCE, 8, 12]
OLD = CREATION_SINCE - 1


class Gateway:
    """The handlers of one gateway, for the sessions of several clients."""

    def __init__(self, rate=2.0, *, configs=("10", "true"), enforce=True):
        self.known = KnownTopics()
        self.known.learn_defaults(dict(zip(("num.partitions", "auto.create.topics.enable"), configs, strict=True)))
        self.under_way = UnderWay()
        limits = {} if rate is None else {"controller_mutation_rate": rate}
        entity = EntityQuota(ClientQuotaEntity(None, "etl"), limits)
        self._settings = QuotaSettings((entity,), enforce=enforce)
        self._engine = None

    def session(self):
        handlers = handler_factories(self.known, self.under_way) | {
            ApiKey.METADATA: metadata_factory(self.known, self.under_way)
        }
        t = Transcript(self._settings, engine=self._engine, handlers=handlers)
        self._engine = t.engine
        return t


def asks(names, *, version=12, creates=True):
    """A client's request for topics by name."""
    values = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": creates}
    return codec.encode_request(ApiKey.METADATA, version, values, 1, "etl")


def looks_up(t, topics):
    """Weir looks up the topics, and the broker answers: 0 partitions for a missing one."""
    t.broker_got(m.metadata_request(1, list(topics)))
    t.broker_answers(m.metadata_answer(1, topics))
    t.run_ready()


def creates(t, names, error_code=3):
    """Weir asks the broker to create the topics, and the broker answers with that error."""
    t.broker_got(m.metadata_request(1, names, create=True))
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(names, 0), error_code=error_code))
    t.run_ready()


def overdraw(t, partitions=60):
    """Charge the client so many partitions by a CreateTopics."""
    t.client_sends(m.create(1, {"x": partitions}))
    t.broker_answers(m.metadata_answer(1, {"x": 0}))
    t.run_ready()
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "x", "num_partitions": partitions}]))
    t.broker_inbox.clear()
    t.client_inbox.clear()


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_topic_is_created_and_charged(version):
    t = Gateway().session()
    t.client_sends(asks(["a", "b"], version=version))
    looks_up(t, {"a": 0, "b": 3})
    assert reserved(t) == PARTITIONS
    creates(t, ["a"])
    t.broker_got(asks(["a", "b"], version=version, creates=False))
    assert (tokens(t), reserved(t)) == (BURST - PARTITIONS, 0)


def test_request_is_opened_after_all_earlier_answers():
    t = Gateway().session()
    poll, reply = messages.fetch(7), messages.fetched(7)
    t.client_sends(poll, asks(["a"]))
    t.broker_got(poll)
    t.broker_answers(reply)
    t.client_got(reply)
    looks_up(t, {"a": 0})
    creates(t, ["a"])
    t.broker_got(asks(["a"], creates=False))


def test_topic_over_the_quota_stays_missing():
    t = Gateway().session()
    t.client_sends(asks(["a", "b", "c", "d"]), messages.heartbeat(2))
    looks_up(t, dict.fromkeys("abcd", 0))
    creates(t, ["a", "b", "c"])
    t.broker_got(asks(["a", "b", "c", "d"], creates=False), messages.heartbeat(2))
    assert tokens(t) == BURST - 3 * PARTITIONS


def test_client_in_debt_creates_nothing_and_is_not_muted():
    t = Gateway().session()
    overdraw(t)
    t.client_sends(asks(["a"]), messages.heartbeat(2))
    looks_up(t, {"a": 0})
    t.broker_got(asks(["a"], creates=False), messages.heartbeat(2))
    assert tokens(t) == BURST - 60


@pytest.mark.parametrize("version", range(CREATION_SINCE))
def test_old_request_passes_with_its_permission(version):
    t = Gateway().session()
    t.client_sends(asks(["a"], version=version))
    looks_up(t, {"a": 0})
    creates(t, ["a"])
    t.broker_got(asks(["a"], version=version))
    assert tokens(t) == BURST - PARTITIONS


def test_old_request_in_debt_waits_before_it_creates():
    t = Gateway().session()
    overdraw(t)
    t.client_sends(asks(["a"], version=OLD))
    looks_up(t, {"a": 0})
    t.broker_got()
    t.passes(19.0)
    looks_up(t, {"a": 0})
    creates(t, ["a"])
    t.broker_got(asks(["a"], version=OLD))


def test_old_request_that_overdraws_is_throttled():
    t = Gateway().session()
    t.client_sends(asks(["a", "b", "c"], version=OLD), messages.heartbeat(2))
    looks_up(t, dict.fromkeys("abc", 0))
    creates(t, ["a", "b", "c"])
    t.broker_got(asks(["a", "b", "c"], version=OLD))
    t.broker_answers(m.metadata_answer(1, dict.fromkeys("abc", 0), version=OLD))
    t.passes(4.0)
    t.broker_got(messages.heartbeat(2))


@pytest.mark.parametrize("error_code", [17, 29])
def test_creation_that_the_broker_refuses_costs_nothing(error_code):
    t = Gateway().session()
    t.client_sends(asks(["a"]))
    looks_up(t, {"a": 0})
    creates(t, ["a"], error_code=error_code)
    assert (tokens(t), reserved(t)) == (BURST, 0)


def test_creation_under_zookeeper_is_charged():
    t = Gateway().session()
    t.client_sends(asks(["a"]))
    looks_up(t, {"a": 0})
    creates(t, ["a"], error_code=5)
    assert tokens(t) == BURST - PARTITIONS


def test_topic_that_exists_in_the_answer_is_charged_by_it():
    t = Gateway().session()
    t.client_sends(asks(["a"]))
    looks_up(t, {"a": 0})
    t.broker_got(m.metadata_request(1, ["a"], create=True))
    t.broker_answers(m.metadata_answer(1, {"a": 4}))
    assert (tokens(t), reserved(t)) == (BURST - 4, 0)


def test_topic_that_stays_missing_is_charged_once_a_minute():
    t = Gateway().session()
    for passed, charged in ((0.0, 1), (1.0, 1), (CREATION_SECONDS, 2)):
        t.passes(passed)
        t.client_sends(asks(["a"]))
        looks_up(t, {"a": 0})
        creates(t, ["a"])
        t.broker_got(asks(["a"], creates=False))
        t.broker_answers(m.metadata_answer(1, {"a": 0}, version=12))
        assert t.row("controller_mutation").amount_total == charged * PARTITIONS


def test_topic_that_is_deleted_and_created_again_costs_again():
    gateway = Gateway(100.0)
    t = gateway.session()
    for charged in (1, 2):
        t.client_sends(asks(["a"]))
        looks_up(t, {"a": 0})
        creates(t, ["a"])
        t.broker_inbox.clear()
        t.broker_answers(m.metadata_answer(1, {"a": 0}, version=12))
        assert t.row("controller_mutation").amount_total == charged * PARTITIONS
        gateway.known.changed("a", 0, t.now)


def test_unanswered_creation_is_charged_in_the_end():
    gateway = Gateway()
    t = gateway.session()
    t.client_sends(asks(["a"]))
    looks_up(t, {"a": 0})
    t.broker_got(m.metadata_request(1, ["a"], create=True))
    gateway.under_way.tick(t.now + LONGEST_SECONDS)
    assert (t.row("controller_mutation").amount_total, reserved(t)) == (PARTITIONS, 0)


def test_creation_waits_for_the_outcome_of_another():
    gateway = Gateway()
    first, second = gateway.session(), gateway.session()
    first.client_sends(asks(["a", "b", "c"]))
    looks_up(first, dict.fromkeys("abc", 0))
    second.client_sends(asks(["d"]))
    looks_up(second, {"d": 0})
    second.broker_got()
    creates(first, ["a", "b", "c"])
    second.run_ready()
    second.broker_got(asks(["d"], creates=False))


def test_waiting_requests_decide_one_after_the_other():
    gateway = Gateway()
    first, second, third = (gateway.session() for _ in range(3))
    first.client_sends(asks(["a", "b", "c"]))
    looks_up(first, dict.fromkeys("abc", 0))
    for waiting, name in ((second, "d"), (third, "e")):
        waiting.client_sends(asks([name]))
        looks_up(waiting, {name: 0})
        waiting.broker_got()
    creates(first, ["a", "b", "c"], error_code=29)
    for waiting, name in ((second, "d"), (third, "e")):
        waiting.run_ready()
        waiting.broker_got(m.metadata_request(1, [name], create=True))


def test_topics_are_looked_up_in_several_requests():
    names = [f"t{number:04}" for number in range(TOPICS_PER_REQUEST + 1)]
    t = Gateway().session()
    t.client_sends(asks(names))
    parts = [names[:TOPICS_PER_REQUEST], names[TOPICS_PER_REQUEST:]]
    t.broker_got(*(m.metadata_request(1, part) for part in parts))
    for part in parts:
        t.broker_answers(m.metadata_answer(1, dict.fromkeys(part, 1)))
    t.run_ready()
    t.broker_got(asks(names, creates=False))


@pytest.mark.parametrize("version", VERSIONS)
def test_request_for_very_many_topics_creates_none(version):
    names = ["a"] * (MAX_ELEMENTS + 1)
    t = Gateway().session()
    t.client_sends(asks(names, version=version))
    t.broker_got(asks(names, version=version, creates=False))


def test_old_request_for_very_many_topics_is_refused():
    with pytest.raises(InvalidFrame, match="more than 5000 topics: ask for the topics in several requests"):
        Gateway().session().client_sends(asks(["a"] * (MAX_ELEMENTS + 1), version=OLD))


@pytest.mark.parametrize("names", [["a", "in/valid"], ["in/valid", "a"]])
def test_illegal_name_is_left_to_the_broker(names):
    t = Gateway().session()
    t.client_sends(asks(names))
    looks_up(t, {"a": 2})
    t.broker_got(asks(names, creates=False))


@pytest.mark.parametrize("request_", [asks(["a"], creates=False), messages.metadata(1), asks([])])
def test_request_that_creates_nothing_is_forwarded_at_once(request_):
    t = Gateway().session()
    t.client_sends(request_)
    t.broker_got(request_)


@pytest.mark.parametrize("gateway", [Gateway(None), Gateway(configs=("10", "false")), Gateway(configs=("10", ""))])
def test_request_is_forwarded_at_once_if_nothing_counts(gateway):
    t = gateway.session()
    t.client_sends(asks(["a"]))
    t.broker_got(asks(["a"]))


def test_creation_counts_without_enforcement():
    t = Gateway(enforce=False).session()
    overdraw(t)
    t.client_sends(asks(["a"]))
    looks_up(t, {"a": 0})
    creates(t, ["a"])
    t.broker_got(asks(["a"], creates=False))
    assert t.row("controller_mutation").amount_total == 60 + PARTITIONS
