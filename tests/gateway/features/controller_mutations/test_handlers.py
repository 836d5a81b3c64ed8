"""Requests that change topics, under a quota of 2 partitions per second and a burst of 22."""

import logging
import uuid

import pytest

from gateway.features.controller_mutations import costs
from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import RECENT_SECONDS, KnownTopics
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.controller_mutations.under_way import UnderWay
from gateway.features.ledger.fold import ThrottleFolds
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.kinds.controller_mutation import KIND
from gateway.quotas.meter import Window
from gateway.quotas.settings import Metering, QuotaSettings
from protocol.api_keys import ApiKey
from protocol.bodies.topic_metadata import TOPICS_PER_REQUEST
from protocol.cursor import MAX_ELEMENTS
from protocol.errors import InvalidFrame
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.features.controller_mutations.mutation_session import reserved, tokens
from tests.gateway.proxy import messages
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import rows_of
from tests.protocol import codec
from tests.protocol.samples import with_length

BURST = 22
APIS = [m.CREATE, m.DELETE, m.GROW]
CHUNKS = [None, 1, 7]


def settings(rate=2.0, **rest):
    limits = {} if rate is None else {"controller_mutation_rate": rate}
    return QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits),), **rest)


def transcript(of=None, known=None, recorder=None):
    known = known or KnownTopics()
    known.default_partitions = known.default_partitions or 3
    return Transcript(of or settings(), handlers=mutations.handler_factories(known), recorder=recorder)


def costing(key, names, partitions, **rest):
    """A request of one of the three kinds with these costs in partitions by topic, and the broker's metadata before it."""
    if key == m.CREATE:
        return m.create(1, dict.fromkeys(names, partitions), **rest), {}
    if key == m.DELETE:
        return m.delete(1, names, **rest), dict.fromkeys(names, partitions)
    return m.grow(1, dict.fromkeys(names, partitions + 1), **rest), dict.fromkeys(names, 1)


def answer_metadata(t, names, topics):
    """Answer Weir's own Metadata request: the broker lists the topics that exist."""
    t.broker_got(m.metadata_request(1, names))
    t.broker_answers(m.metadata_answer(1, {name: topics.get(name, 0) for name in names}))
    t.run_ready()


def test_each_charged_api_has_a_handler():
    assert ControllerMutations().handlers().keys() == KIND.charge.apis


# Strict and permissive.


@pytest.mark.parametrize("key", APIS)
def test_strict_request_may_overdraw_once_rest_is_refused(key):
    t = transcript()
    request, topics = costing(key, ["a", "b", "c"], 30)
    t.client_sends(request)
    answer_metadata(t, ["a", "b", "c"], topics)
    t.broker_got(costing(key, ["a"], 30)[0])
    assert (tokens(t), reserved(t)) == (BURST, 30)
    t.broker_answers(m.answered(key, 1, [{"name": "a"}]))
    assert (tokens(t), reserved(t)) == (BURST - 30, 0)
    t.client_got(m.answered(key, 1, [{"name": "a"}, m.refused("b"), m.refused("c")], throttle_time_ms=4_000))
    assert t.row("controller_mutation").throttled_total == 1
    t.client_sends(messages.heartbeat(2))
    t.broker_got()
    t.passes(4.0)
    t.broker_got(messages.heartbeat(2))


@pytest.mark.parametrize("key", APIS)
def test_request_with_nothing_left_is_answered_locally(key):
    t = transcript()
    t.client_sends(m.create(9, {"x": 60}))
    t.broker_answers(m.metadata_answer(9, {"x": 0}))
    t.run_ready()
    t.broker_answers(m.answered(m.CREATE, 9, [{"name": "x", "num_partitions": 60}]))
    t.client_got(m.answered(m.CREATE, 9, [{"name": "x", "num_partitions": 60}]))
    t.broker_inbox.clear()
    request, topics = costing(key, ["a", "b"], 1)
    t.client_sends(request)
    answer_metadata(t, ["a", "b"], topics)
    t.broker_got()
    t.client_got(m.answered(key, 1, [m.refused("a"), m.refused("b")], throttle_time_ms=19_000))
    assert tokens(t) == BURST - 60


@pytest.mark.parametrize("key", APIS)
def test_permissive_request_is_throttled_not_refused(key):
    t = transcript()
    request, topics = costing(key, ["a", "b"], 30, version=m.PERMISSIVE[key])
    t.client_sends(request, messages.heartbeat(2))
    answer_metadata(t, ["a", "b"], topics)
    t.broker_got(request)
    t.passes(1.0)
    done = [{"name": "a"}, {"name": "b"}]
    t.broker_answers(m.answered(key, 1, done, version=m.PERMISSIVE[key]))
    t.client_got(m.answered(key, 1, done, version=m.PERMISSIVE[key], throttle_time_ms=19_000))
    t.broker_got()
    t.passes(19.0)
    t.broker_got(messages.heartbeat(2))


@pytest.mark.parametrize("version", range(8))
def test_every_version_of_create_topics_is_charged(version):
    t = transcript()
    controller = m.Controller(t)
    t.client_sends(m.create(1, {"a": 5}, version=version))
    controller.serve()
    assert tokens(t) == BURST - 5


def test_overdrawn_bucket_does_not_mute_strict_clients():
    t = transcript()
    controller = m.Controller(t)
    t.client_sends(m.create(1, {"a": 60}))
    controller.serve()
    t.client_got(m.answered(m.CREATE, 1, [{"name": "a", "num_partitions": 60, "topic_id": m.id_of("a")}]))
    t.client_sends(messages.heartbeat(2))
    t.broker_got(messages.heartbeat(2))


def test_other_requests_pass_overdrawn_mutation_bucket():
    t = transcript()
    t.client_sends(messages.metadata(1), messages.produce(2))
    t.broker_got(messages.metadata(1), messages.produce(2))


# The metadata requests before the decision.


@pytest.mark.parametrize("by", CHUNKS)
def test_later_requests_wait_for_topic_metadata(by):
    t = transcript()
    t.client_sends(m.delete(1, ["a"]), messages.heartbeat(2), by=by)
    t.broker_got(m.metadata_request(1, ["a"]))
    t.broker_answers(m.metadata_answer(1, {"a": 4}), by=by)
    t.client_got()
    assert not t.core.idle
    t.run_ready()
    t.broker_got(m.delete(1, ["a"]))
    t.broker_answers(m.answered(m.DELETE, 1, [{"name": "a"}]))
    t.broker_got(messages.heartbeat(2))
    assert t.counters.requests[ApiKey.METADATA] == 0


def test_topics_by_id_are_looked_up_if_broker_can():
    t = transcript()
    names = ["a", "b"]
    t.client_sends(m.delete(1, [m.id_of(name) for name in names]))
    t.broker_got(codec.encode_request(ApiKey.API_VERSIONS, 0, {}, 1, "etl"))
    t.broker_answers(messages.versions_are(1, [(3, 0, 12)], version=0))
    t.broker_got(m.metadata_request_by_id(1, names))
    t.broker_answers(m.metadata_answer(1, {"a": 30, "b": 1}, version=12))
    t.run_ready()
    t.broker_got(m.delete(1, [m.id_of("a")]))
    t.broker_answers(m.answered(m.DELETE, 1, [{"name": "a", "topic_id": m.id_of("a")}]))
    results = [{"name": "a", "topic_id": m.id_of("a")}, m.refused("b", m.id_of("b"))]
    t.client_got(m.answered(m.DELETE, 1, results, throttle_time_ms=4_000))


def test_unknown_topic_ids_cost_a_guess_logged_once(caplog):
    t = transcript()
    for number in range(2):
        t.client_sends(m.delete(1, [uuid.UUID(int=5 + number)]))
        t.broker_answers(messages.versions_are(1, [(3, 0, 11)], version=0))
        t.run_ready()
        t.broker_answers(m.answered(m.DELETE, 1, [{"name": None, "topic_id": uuid.UUID(int=5 + number)}]))
    assert tokens(t) == BURST - 2
    (record,) = caplog.records
    assert record.getMessage() == (
        "the number of partitions of a deleted topic is unknown: Weir counts one partition until a broker's answer has the"
        " number"
    )


@pytest.mark.parametrize("rate", [None, "exempt"])
def test_client_without_quota_is_measured_without_lookup(rate, caplog):
    exempt = EntityQuota(ClientQuotaEntity(None, "etl"), exempt=True)
    t = transcript(settings(None) if rate is None else QuotaSettings((exempt,)), KnownTopics())
    request = m.create(1, {"a": 500, "b": 500})
    answer = m.answered(m.CREATE, 1, [{"name": "a", "num_partitions": 500}, {"name": "b", "num_partitions": 500}])
    t.client_sends(request, request)
    for _ in range(2):
        t.broker_got(request)
        t.broker_answers(answer)
        t.client_got(answer)
    assert t.row("controller_mutation").amount_total == 2_000
    assert not caplog.records


@pytest.mark.parametrize("rate", [None, 2.0], ids=["unlimited", "limited"])
def test_pipelined_requests_are_opened_one_at_a_time(rate):
    """Of 5 000 empty names in 5 KB, Weir keeps 1 MB until the answer. So none is opened behind a long poll."""
    t = transcript(settings(rate))
    many, poll = [m.delete(number, [""] * 5, version=5) for number in (2, 3, 4)], messages.fetch(1)
    t.client_sends(poll, *many)
    t.goes_on()
    t.broker_got(poll)
    t.broker_answers(messages.fetched(1))
    t.goes_on()
    t.broker_got(many[0])
    t.broker_answers(m.answered(m.DELETE, 2, [{"name": "", "error_code": 3}], version=5))
    t.goes_on()
    t.broker_got(many[1])


def test_mutation_is_taken_after_all_earlier_answers():
    t = transcript()
    t.client_sends(messages.heartbeat(7), messages.heartbeat(8), m.delete(1, ["a"], version=5), messages.heartbeat(2))
    t.broker_got(messages.heartbeat(7), messages.heartbeat(8))
    t.broker_answers(messages.beat(7))
    t.client_got(messages.beat(7))
    t.broker_got()
    t.broker_answers(messages.beat(8))
    t.client_got(messages.beat(8))
    t.broker_got(m.metadata_request(1, ["a"]))


def test_mutation_is_taken_after_the_end_of_an_answer():
    t = transcript()
    t.client_sends(messages.fetch(7))
    answer = messages.fetched(7)
    t.broker_got(messages.fetch(7))
    t.broker_answers(answer[:-1])
    t.client_sends(m.delete(1, ["a"], version=5))
    t.broker_got()
    t.broker_answers(answer[-1:])
    t.client_got(answer)
    t.broker_got(m.metadata_request(1, ["a"]))


@pytest.mark.parametrize("version", [5, 7], ids=["permissive", "strict"])
def test_unenforced_mutation_quota_only_counts(version):
    folds = ThrottleFolds()
    t = transcript(settings(enforce=False), recorder=folds)
    controller = m.Controller(t)
    for number in range(3):
        t.client_sends(m.create(1, {f"a{number}": 30, f"b{number}": 30}, version=version))
        controller.serve()
    assert controller.topics == {f"{name}{number}": 30 for number in range(3) for name in "ab"}
    assert t.core.throttle.active is False
    row = t.row("controller_mutation")
    assert (row.amount_total, row.throttled_total, row.rate) == (180, 3, 18.0)
    (event,) = folds.take("weir-1", t.now, t.now)
    assert (event.kind, event.enforced, event.count) == ("controller_mutation", False, 3)


# The cost of a request.

BY_HAND = [{"partition_index": number, "broker_ids": [0]} for number in range(4)]


def created(name="a", count=1, replicas=1, assignments=()):
    return {"name": name, "num_partitions": count, "replication_factor": replicas, "assignments": list(assignments)}


def grown(name="a", count=1, assignments=None):
    return {"name": name, "count": count, "assignments": assignments}


@pytest.mark.parametrize(
    ("topics", "there", "cost"),
    [
        ([created(count=5)], {}, 5),
        ([created(count=5, replicas=-1)], {}, 5),
        ([created(count=5, replicas=3)], {}, 5),  # replicas never count
        ([created(count=-1)], {}, 3),  # num.partitions
        ([created(count=-1, replicas=-1, assignments=BY_HAND)], {}, 4),
        ([created("a", 2), created("b", 3)], {}, 5),
        # The broker refuses these before it checks the quota.
        ([created(count=5)], {"a": 1}, 0),
        ([created(count=0)], {}, 0),
        ([created(count=-2)], {}, 0),
        ([created(count=5, replicas=0)], {}, 0),
        ([created(count=5, replicas=-2)], {}, 0),
        ([created(count=4, replicas=-1, assignments=BY_HAND)], {}, 0),
        ([created(count=-1, replicas=1, assignments=BY_HAND)], {}, 0),
        ([created("a", 5), created("a", 5)], {}, 0),
        ([created("a", 5_001), created("b", 5_000)], {}, 10_000),  # the controller may drop one of them, and executes no more
        ([created("not a name", 5)], {}, 0),
    ],
)
def test_created_topics_cost_their_partitions(topics, there, cost):
    t = transcript(settings(1_000.0))
    t.client_sends(m.create(1, topics))
    if legal := list({topic["name"] for topic in topics if " " not in topic["name"]}):
        answer_metadata(t, legal, there)
    t.broker_got(m.create(1, topics))
    assert reserved(t) == cost


@pytest.mark.parametrize(("error_code", "cost"), [(3, 5), (29, 5), (17, 0), (5, 0)])
def test_uncreatable_topic_is_free_hidden_topic_is_charged(error_code, cost):
    t = transcript()
    t.client_sends(m.create(1, {"a": 5}))
    t.broker_answers(m.metadata_answer(1, {"a": 0}, error_code=error_code))
    t.run_ready()
    assert reserved(t) == cost


@pytest.mark.parametrize(
    ("topics", "there", "cost"),
    [
        ([grown(count=7)], {"a": 3}, 4),
        ([grown(count=7, assignments=[{"broker_ids": [0]}] * 4)], {"a": 3}, 4),
        ([grown("a", 7), grown("b", 9)], {"a": 3, "b": 8}, 5),
        ([grown(count=3)], {"a": 3}, 0),
        ([grown(count=2)], {"a": 3}, 0),
        ([grown(count=2)], {}, 0),
        ([grown(count=7, assignments=[{"broker_ids": [0]}] * 5)], {"a": 3}, 0),
        ([grown("a", 7), grown("a", 8)], {"a": 3}, 0),
    ],
)
def test_added_partitions_cost_their_difference(topics, there, cost):
    t = transcript()
    t.client_sends(m.grow(1, topics))
    answer_metadata(t, list({topic["name"] for topic in topics}), there)
    t.broker_got(m.grow(1, topics))
    assert reserved(t) == cost


@pytest.mark.parametrize(
    ("names", "cost"), [(["a"], 3), (["a", "b"], 8), (["nowhere"], 0), (["a", "a"], 0), (["a", "b", "b"], 3)]
)
def test_deleted_topics_cost_their_partitions(names, cost):
    t = transcript()
    t.client_sends(m.delete(1, names))
    answer_metadata(t, list(set(names)), {"a": 3, "b": 5})
    t.broker_got(m.delete(1, names))
    assert reserved(t) == cost


@pytest.mark.parametrize("topic_id", [m.id_of("a"), uuid.UUID(int=0)])
def test_deletion_needs_exactly_one_of_name_and_id(topic_id):
    name = None if topic_id == uuid.UUID(int=0) else "a"
    values = {"topics": [{"name": name, "topic_id": topic_id}], "timeout_ms": 1}
    t = transcript()
    controller = m.Controller(t, {"a": 3})
    controller.refusals = {"a": 42}
    request = codec.encode_request(ApiKey.DELETE_TOPICS, 6, values, 1, "etl")
    t.client_sends(request)
    if name:
        controller.serve()
    else:
        t.broker_got(request)
    assert t.row("controller_mutation").amount_total == 0


def test_requests_that_will_fail_pass_an_empty_bucket():
    t = transcript()
    controller = m.Controller(t, {"there": 2})
    t.client_sends(m.create(1, {"a": 60}))
    controller.serve()
    t.client_inbox.clear()
    t.client_sends(m.create(1, {"new": 1, "there": 1}))
    controller.serve()
    there = {"name": "there", "error_code": 36, "error_message": "Topic 'there' already exists."}
    t.client_got(m.answered(m.CREATE, 1, [m.refused("new"), there], throttle_time_ms=19_000))


def test_validate_only_costs_the_same():
    """As in KRaft, `validate_only` is charged and refused like a real change."""
    t = transcript()
    t.client_sends(m.create(1, {"a": 30}, validate_only=True))
    answer_metadata(t, ["a"], {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a", "num_partitions": 30}]))
    t.broker_inbox.clear()
    t.client_inbox.clear()
    assert tokens(t) == BURST - 30
    t.client_sends(m.create(1, {"a": 30}, validate_only=True))
    answer_metadata(t, ["a"], {})
    t.client_got(m.answered(m.CREATE, 1, [m.refused("a")], throttle_time_ms=4_000))


# Requests that the controller refuses as a whole.

WHOLE = {"decoy": 5_001, "a": 5_000}


def test_oversized_creation_is_forwarded_whole():
    t = transcript()
    t.client_sends(m.create(1, WHOLE))
    answer_metadata(t, list(WHOLE), {})
    t.broker_got(m.create(1, WHOLE))
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": name, "error_code": 44} for name in WHOLE]))
    t.client_got(m.answered(m.CREATE, 1, [{"name": name, "error_code": 44} for name in WHOLE]))
    assert tokens(t) == BURST


def test_oversized_creation_is_refused_in_debt():
    t = in_debt()
    t.client_sends(m.create(1, WHOLE))
    answer_metadata(t, list(WHOLE), {})
    t.broker_got()
    t.client_got(m.answered(m.CREATE, 1, [m.refused(name) for name in WHOLE], throttle_time_ms=19_000))
    assert tokens(t) == BURST - 60


def test_oversized_creation_costs_created_topics():
    t = transcript()
    t.client_sends(m.create(1, WHOLE))
    answer_metadata(t, list(WHOLE), {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "decoy", "error_code": 29}, {"name": "a", "num_partitions": 5_000}]))
    assert tokens(t) == BURST - 5_000


def test_oversized_permissive_creation_is_given_back():
    t = transcript()
    t.client_sends(m.create(1, WHOLE, version=5))
    answer_metadata(t, list(WHOLE), {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": name, "error_code": 44} for name in WHOLE], version=5))
    t.passes(0.0)
    assert not t.core.throttle.active
    assert tokens(t) == BURST


# In debt, no topic is forwarded because of metadata that may be out of date.


def in_debt(known=None):
    """A client whose bucket lacks 38 partitions, which is 19 seconds."""
    t = transcript(known=known)
    t.client_sends(m.create(9, {"x": 60}))
    m.Controller(t).serve()
    t.client_inbox.clear()
    return t


@pytest.mark.parametrize(
    ("key", "request_frame", "there", "error_code", "text"),
    [
        (m.CREATE, m.create(1, {"a": 5}), 2, 36, "Topic 'a' already exists."),
        (m.DELETE, m.delete(1, ["a"]), 0, 3, "This server does not host this topic-partition."),
        (m.GROW, m.grow(1, {"a": 5}), 0, 3, None),
        (m.GROW, m.grow(1, {"a": 5}), 5, 37, "Topic already has 5 partition(s)."),
        (m.GROW, m.grow(1, {"a": 5}), 6, 37, "The topic a currently has 6 partition(s); 5 would not be an increase."),
        (
            m.GROW,
            m.grow(1, [grown(count=5, assignments=[{"broker_ids": [0]}] * 3)]),
            3,
            39,
            "Attempted to add 2 additional partition(s), but only 3 assignment(s) were specified.",
        ),
    ],
    ids=["create", "delete", "grow_unknown", "grow_none", "grow_less", "grow_assignments"],
)
def test_expected_error_is_answered_here_in_debt(key, request_frame, there, error_code, text):
    t = in_debt()
    t.client_sends(request_frame)
    answer_metadata(t, ["a"], {"a": there})
    t.broker_got()
    t.client_got(m.answered(key, 1, [{"name": "a", "error_code": error_code, "error_message": text}]))
    assert not t.core.throttle.active


def test_unknown_topic_id_is_answered_here_in_debt():
    t = in_debt()
    t.client_sends(m.delete(1, [m.id_of("a")]))
    t.broker_answers(messages.versions_are(1, [(3, 0, 12)], version=0))
    t.broker_answers(m.metadata_answer(1, {"a": 0}, version=12, error_code=100))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got()
    answer = {"name": "a", "topic_id": m.id_of("a"), "error_code": 100}
    t.client_got(m.answered(m.DELETE, 1, [answer | {"error_message": "This server does not host this topic ID."}]))


def test_deletion_of_an_unseen_topic_may_succeed_after_the_debt():
    """A right on the cluster suffices, so the error of the metadata is not the controller's."""
    t = in_debt()
    t.client_sends(m.delete(1, ["a"]))
    t.broker_answers(m.metadata_answer(1, {"a": 0}, error_code=29))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got()
    t.client_got(m.answered(m.DELETE, 1, [m.refused("a")], throttle_time_ms=19_000))


@pytest.mark.parametrize(
    ("key", "request_frame"),
    [
        (m.CREATE, m.create(1, [created("dup", 5), created("dup", 5), created("zero", 0), created("not a name", 5)])),
        (m.DELETE, m.delete(1, ["dup", "dup", "not a name"])),
        (m.GROW, m.grow(1, [grown("dup", 5), grown("dup", 5), grown("zero", 0)])),
    ],
    ids=["create", "delete", "grow"],
)
def test_invalid_topics_pass_in_debt(key, request_frame):
    t = in_debt()
    t.client_sends(request_frame)
    t.broker_answers(m.metadata_answer(1, {"dup": 0, "zero": 0}))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got(request_frame)


SOURCES_DISAGREE = pytest.mark.parametrize(
    ("request_frame", "key", "known_here", "there", "cost"),
    [
        (m.create(1, {"a": 5}), m.CREATE, 3, 0, 5),
        (m.delete(1, ["a"]), m.DELETE, 0, 3, 3),
        (m.grow(1, {"a": 5}), m.GROW, 5, 3, 2),
        (m.grow(1, {"a": 5}), m.GROW, 0, 3, 2),
    ],
    ids=["create", "delete", "grow", "grow_deleted"],
)
"""This gateway has seen a change that makes the request fail; by the metadata, as it is or will be, the request succeeds."""


@SOURCES_DISAGREE
def test_in_debt_no_source_is_trusted(request_frame, key, known_here, there, cost):
    known = KnownTopics()
    t = in_debt(known)
    known.changed("a", known_here, t.now)
    t.client_sends(request_frame)
    answer_metadata(t, ["a"], {"a": there} if there else {})
    t.broker_got()
    assert tokens(t) == BURST - 60


@SOURCES_DISAGREE
def test_success_against_recent_change_is_charged(request_frame, key, known_here, there, cost):
    known = KnownTopics()
    t = transcript(known=known)
    known.changed("a", known_here, t.now)
    t.client_sends(request_frame)
    answer_metadata(t, ["a"], {"a": there} if there else {})
    t.broker_got(request_frame)
    t.broker_answers(m.answered(key, 1, [{"name": "a"}]))
    assert tokens(t) == BURST - cost


def test_recent_topic_does_not_crowd_out_others():
    """The topic was just created through Weir, and the broker does not know it. Its cost must not overdraw the bucket."""
    known = KnownTopics()
    t = transcript(known=known)
    known.changed("there", 1, t.now)
    request = m.create(1, {"there": 30, "a": 1})
    t.client_sends(request)
    answer_metadata(t, ["there", "a"], {})
    t.broker_got(request)


@pytest.mark.parametrize(
    ("request_frame", "key", "there", "cost"),
    [(m.create(1, {"a": 5}), m.CREATE, 2, 5), (m.delete(1, ["a"]), m.DELETE, 0, 1), (m.grow(1, {"a": 5}), m.GROW, 5, 1)],
    ids=["create", "delete", "grow"],
)
def test_success_against_the_forecast_is_charged(request_frame, key, there, cost):
    t = transcript()
    t.client_sends(request_frame)
    answer_metadata(t, ["a"], {"a": there} if there else {})
    t.broker_answers(m.answered(key, 1, [{"name": "a"}]))
    assert tokens(t) == BURST - cost


BY_ID = m.id_of("a")
NAMED_AGAIN = [
    (["a", "a", BY_ID], ["a", "a"], 9),
    (["a", "a", "a", BY_ID], ["a", "a", "a"], 9),
    ([BY_ID, BY_ID, "a"], ["a", "a"], 9),
    (["a", "a", BY_ID, BY_ID], ["a"] * 4, 0),
    (["a", BY_ID], [], 18),
]
"""Entries of a topic of 9 partitions; those that pass in debt, because KRaft drops them first; the forecast of the others.

KRaft refuses one name and one id of a topic. It would execute one of them alone.
"""


@pytest.mark.parametrize(("entries", "forwarded", "cost"), NAMED_AGAIN)
def test_topic_named_again_passes_only_where_kafka_drops_it(entries, forwarded, cost):
    t = in_debt()
    controller = m.Controller(t, {"a": 9})
    controller.refusals = {"a": 42}
    t.client_sends(m.delete(1, entries))
    controller.serve()
    assert controller.forwarded == forwarded
    assert tokens(t) == BURST - 60


@pytest.mark.parametrize(("entries", "forwarded", "cost"), NAMED_AGAIN)
def test_topic_named_again_costs_its_forecast(entries, forwarded, cost):
    t = transcript()
    t.client_sends(m.delete(1, entries))
    t.broker_answers(m.metadata_answer(1, {"a": 9}), messages.versions_are(1, [(3, 0, 13)], version=0))
    t.broker_answers(m.metadata_answer(1, {"a": 9}, version=12))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got(m.delete(1, entries))
    assert reserved(t) == cost


BOTH = {"name": "a", "topic_id": BY_ID}


@pytest.mark.parametrize(
    ("entries", "results"),
    [
        (["a", "a", BY_ID], [{"name": "a", "error_code": 42}, BOTH]),
        (["a"] * 2_000 + [BY_ID], [{"name": "a", "error_code": 42}, BOTH]),
        ([BY_ID, "a", "a"], [BOTH, {"name": "a", "error_code": 42}]),
        (["a", BY_ID], [BOTH]),
    ],
    ids=["twice", "2000", "id_first", "both"],
)
def test_deleted_topic_is_charged_once_for_all_its_entries(entries, results):
    t = transcript()
    t.client_sends(m.delete(1, entries))
    t.broker_answers(m.metadata_answer(1, {"a": 9}), messages.versions_are(1, [(3, 0, 13)], version=0))
    t.broker_answers(m.metadata_answer(1, {"a": 9}, version=12))
    t.run_ready()
    t.broker_answers(m.answered(m.DELETE, 1, results))
    assert (tokens(t), reserved(t)) == (BURST - 9, 0)


def test_entry_with_name_and_id_adds_no_charge():
    """KRaft refuses the first entry. The answer to the second one has its name and id as well."""
    topics = [{"name": "a", "topic_id": BY_ID}, {"name": "a", "topic_id": uuid.UUID(int=0)}]
    t = transcript()
    t.client_sends(codec.encode_request(m.DELETE, 6, {"topics": topics, "timeout_ms": 1}, 1, "etl"))
    t.broker_answers(m.metadata_answer(1, {"a": 9}), messages.versions_are(1, [(3, 0, 11)], version=0))
    t.run_ready()
    t.broker_answers(m.answered(m.DELETE, 1, [BOTH | {"error_code": 42}, BOTH]))
    assert tokens(t) == BURST - 9


def test_name_beside_the_id_of_an_older_topic_is_refused_in_debt():
    """The id is of a topic that was created through Weir, and has been replaced by another one of the same name."""
    known = KnownTopics()
    known.changed("a", 9, START - RECENT_SECONDS, BY_ID.bytes)
    t = in_debt(known)
    t.client_sends(m.delete(1, ["a", BY_ID]))
    t.broker_answers(m.metadata_answer(1, {"a": 9}), messages.versions_are(1, [(3, 0, 11)], version=0))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got()
    t.client_got(m.answered(m.DELETE, 1, [m.refused("a"), m.refused("a", BY_ID)], throttle_time_ms=19_000))


def test_entry_with_name_and_id_is_no_twin():
    """KRaft refuses the first entry and executes the second one."""
    topics = [{"name": "a", "topic_id": m.id_of("other")}, {"name": "a", "topic_id": uuid.UUID(int=0)}]
    request = codec.encode_request(m.DELETE, 6, {"topics": topics, "timeout_ms": 1}, 1, "etl")
    t = transcript()
    t.client_sends(request)
    t.broker_answers(m.metadata_answer(1, {"a": 9}), messages.versions_are(1, [(3, 0, 11)], version=0))
    t.broker_inbox.clear()
    t.run_ready()
    t.broker_got(request)
    assert reserved(t) == 9
    refusal = {"name": "a", "topic_id": m.id_of("other"), "error_code": 42}
    t.broker_answers(m.answered(m.DELETE, 1, [refusal, {"name": "a", "topic_id": m.id_of("a")}]))
    assert tokens(t) == BURST - 9


@pytest.mark.parametrize("key", APIS)
def test_timed_out_topic_stays_charged(key):
    """If timeout_ms is 0, ZooKeeper's controller answers so at once and then continues."""
    t = transcript()
    request, topics = costing(key, ["a"], 5)
    t.client_sends(request)
    answer_metadata(t, ["a"], topics)
    t.broker_answers(m.answered(key, 1, [{"name": "a", "error_code": 7}]))
    assert tokens(t) == BURST - 5


# A permissive request in debt is deferred on each connection.


def permissive(t, number):
    t.client_sends(m.create(number, {f"p{number}": 30}, version=5))
    answer_metadata_if_any(t, number)


def answer_metadata_if_any(t, number):
    """Answer the Metadata request for request `number`, if Weir sends one."""
    if t.broker_inbox:
        t.broker_got(m.metadata_request(number, [f"p{number}"]))
        t.broker_answers(m.metadata_answer(number, {f"p{number}": 0}))
        t.run_ready()


def execute(t, number):
    """Answer a permissive request that was forwarded."""
    t.broker_got(m.create(number, {f"p{number}": 30}, version=5))
    t.broker_answers(m.answered(m.CREATE, number, [{"name": f"p{number}", "num_partitions": 30}], version=5))


def test_permissive_request_on_known_connection_waits():
    """Each connection sends an invalid request before the debt, so that its next request is not its first one."""
    t = transcript()
    others = [Transcript(engine=t.engine, handlers=mutations.handler_factories(KnownTopics())) for _ in range(5)]
    for other in others:
        other.client_sends(m.create(1, {"a": 0}, version=5))
        answer_metadata(other, ["a"], {})
        other.broker_got(m.create(1, {"a": 0}, version=5))
        other.broker_answers(m.answered(m.CREATE, 1, [{"name": "a", "error_code": 37}], version=5))
    permissive(t, 2)
    execute(t, 2)
    for number, other in enumerate(others, start=3):
        permissive(other, number)
        other.broker_got()
        assert other.core.throttle.active
    assert tokens(t) == BURST - 30


def test_permissive_requests_that_wait_pass_one_by_one():
    t = transcript()
    permissive(t, 1)
    execute(t, 1)
    others = [Transcript(engine=t.engine, handlers=mutations.handler_factories(KnownTopics())) for _ in range(5)]
    for number, other in enumerate(others, start=2):
        permissive(other, number)
    first, second, *_ = others
    pass_until_asked(others)
    answer_metadata_if_any(first, 2)
    execute(first, 2)
    pass_until_asked(others)
    answer_metadata_if_any(second, 3)
    second.broker_got(m.create(3, {"p3": 30}, version=5))
    assert not any(other.broker_inbox for other in others)


DEBT = (30 - BURST) / 2.0
"""The seconds after which the first of `permissive` requests is paid for."""


def waiting_permissive(number):
    """A transcript whose request has put the bucket in debt, and `number` others that wait for the end of that debt."""
    t = transcript()
    permissive(t, 1)
    execute(t, 1)
    under_way = UnderWay()
    handlers = mutations.handler_factories(KnownTopics(), under_way)
    others = [Transcript(engine=t.engine, handlers=handlers) for _ in range(number)]
    for number, other in enumerate(others, start=2):
        permissive(other, number)
    return under_way, others


def asking(transcripts):
    """Those that have a request at the broker."""
    return [each for each in transcripts if each.broker_inbox]


def pass_until_asked(transcripts):
    """Let time pass for all connections of one gateway, 16 s at most, until one of them has a request at the broker."""
    for _ in range(1_600):
        for each in transcripts:
            each.passes(0.01)
        if asking(transcripts):
            break


def test_deferred_requests_ask_the_broker_one_by_one():
    _, others = waiting_permissive(5)
    for other in others:
        other.passes(DEBT)
    assert asking(others) == others[:1]
    assert all(other.core.throttle.active for other in others[1:]), "deferred again, without a look at the broker"
    answer_metadata_if_any(others[0], 2)
    execute(others[0], 2)
    pass_until_asked(others)
    assert asking(others) == others[1:2]


@pytest.mark.parametrize("ends", ["costs nothing", "is gone"])
def test_next_deferred_request_passes_after_the_turn_of_one_that(ends):
    under_way, others = waiting_permissive(3)
    for other in others:
        other.passes(DEBT)
    first, second, third = others
    if ends == "is gone":
        first.core.close(first.now)
        under_way.tick(first.now)
    else:
        first.broker_got(m.metadata_request(2, ["p2"]))
        first.broker_answers(m.metadata_answer(2, {"p2": 5}))  # it exists now
        first.run_ready()
    first.broker_inbox.clear()
    pass_until_asked([second, third])
    assert asking(others) == [second]


def test_permissive_request_that_costs_nothing_does_not_wait():
    t = in_debt()
    for number, topics, error_code in ((1, {"a": 0}, 37), (2, {"x": 5}, 36)):
        t.client_sends(m.create(number, topics, version=5))
        controller = m.Controller(t, {"x": 60})
        controller.refusals = {"a": 37}
        controller.serve()
        answer = codec.decode_response(m.CREATE, 5, bytes(t.client_inbox))
        assert [topic["error_code"] for topic in answer["topics"]] == [error_code]
        t.client_inbox.clear()
    assert not t.core.throttle.active


def test_deferred_request_does_not_hold_up_a_drain():
    t = in_debt()
    permissive(t, 2)
    t.ends()
    assert t.half_closes()
    t.broker_got()


# The broker's results.


@pytest.mark.parametrize(
    ("key", "error_code", "charged"),
    [
        *((key, error_code, 0) for key in APIS for error_code in (29, 36, 37, 40, 41, 44, 89)),
        *((m.CREATE, error_code, 0) for error_code in (38, 39, -1)),
        (m.DELETE, -1, 0),
        (m.GROW, 38, 5),  # the controller charges the quota before it places replicas
        (m.GROW, 39, 5),
        (m.GROW, -1, 5),  # of more than 10 000 partitions, the controller creates 10 000 all the same
    ],
)
def test_refused_mutations_are_charged_as_in_kafka(key, error_code, charged):
    t = transcript()
    request, topics = costing(key, ["a", "b"], 5)
    t.client_sends(request)
    answer_metadata(t, ["a", "b"], topics)
    assert reserved(t) == 10
    t.broker_answers(m.answered(key, 1, [{"name": "a", "error_code": error_code}, {"name": "b", "num_partitions": 5}]))
    assert tokens(t) == BURST - 5 - charged


def test_refused_topic_mutes_nobody():
    """Weir has refused the other topics before it knew that."""
    t = transcript()
    request, _ = costing(m.CREATE, ["a", "b", "c"], 30)
    t.client_sends(request)
    answer_metadata(t, ["a", "b", "c"], {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a", "error_code": 44, "error_message": "no"}]))
    results = [{"name": "a", "error_code": 44, "error_message": "no"}, m.refused("b"), m.refused("c")]
    t.client_got(m.answered(m.CREATE, 1, results))
    assert not t.core.throttle.active


def test_guessed_default_partitions_are_corrected_by_answer(caplog):
    t = Transcript(settings(), handlers=mutations.handler_factories(KnownTopics()))
    controller = m.Controller(t, num_partitions=6)
    t.client_sends(m.create(1, {"a": -1}))
    controller.serve()
    assert tokens(t) == BURST - 6
    t.client_sends(m.create(1, {"b": -1, "c": -1, "d": -1, "e": -1}))
    controller.serve()
    assert controller.forwarded == ["a", "b", "c", "d"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_results_keep_request_order_unknown_last():
    t = transcript()
    topics = [created("a", 10), created("dup", 1), created("b", 20), created("dup", 1), created("c", 1), created("there", 1)]
    t.client_sends(m.create(1, topics))
    answer_metadata(t, ["a", "b", "c", "dup", "there"], {"there": 1})
    t.broker_got(m.create(1, [topics[index] for index in (0, 1, 2, 3)]))  # the metadata of `there` may be out of date
    a, b = {"name": "a", "num_partitions": 10}, {"name": "b", "num_partitions": 20}
    there = {"name": "there", "error_code": 36, "error_message": "Topic 'there' already exists."}
    dup = {"name": "dup", "error_code": 42}
    other = {"name": "other", "error_code": 7}
    t.broker_answers(m.answered(m.CREATE, 1, [b, a, other, dup]))
    t.client_got(m.answered(m.CREATE, 1, [a, dup, b, m.refused("c"), there, other], throttle_time_ms=4_000))


def test_longer_broker_throttle_time_stays():
    t = transcript()
    request, _ = costing(m.CREATE, ["a", "b"], 30)
    t.client_sends(request)
    answer_metadata(t, ["a", "b"], {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a"}], throttle_time_ms=9_000))
    t.client_got(m.answered(m.CREATE, 1, [{"name": "a"}, m.refused("b")], throttle_time_ms=9_000))


def test_unknown_fields_of_an_answer_survive():
    t = transcript()
    request, _ = costing(m.CREATE, ["a", "b"], 30)
    t.client_sends(request)
    answer_metadata(t, ["a", "b"], {})
    t.broker_inbox.clear()
    answer = m.answered(m.CREATE, 1, [{"name": "a"}])
    t.broker_answers(with_length(answer[4:-1] + b"\x01\x2a\x01!"))
    assert t.client_inbox.endswith(b"\x01\x2a\x01!")


# Recent changes of topics.


def test_recent_change_overrides_stale_metadata():
    t = transcript(settings(1_000.0))

    def change(request, metadata, answer):
        before = t.row("controller_mutation").amount_total if rows_of(t.engine, t.now) else 0
        t.client_sends(request)
        t.broker_answers(m.metadata_answer(1, metadata))
        t.run_ready()
        t.broker_answers(answer)
        return t.row("controller_mutation").amount_total - before

    new = m.answered(m.CREATE, 1, [{"name": "a", "num_partitions": 5, "topic_id": m.id_of("a")}])
    assert change(m.create(1, {"a": 5}), {"a": 0}, new) == 5
    assert change(m.create(1, {"a": 5}), {"a": 0}, m.answered(m.CREATE, 1, [{"name": "a", "error_code": 36}])) == 0
    assert change(m.grow(1, {"a": 8}), {"a": 0}, m.answered(m.GROW, 1, [{"name": "a"}])) == 3
    assert change(m.grow(1, {"a": 9}), {"a": 5}, m.answered(m.GROW, 1, [{"name": "a"}])) == 1
    assert change(m.delete(1, ["a"]), {"a": 5}, m.answered(m.DELETE, 1, [{"name": "a"}])) == 9
    assert change(m.create(1, {"a": 5}), {"a": 9}, new) == 5
    t.passes(RECENT_SECONDS)
    assert change(m.delete(1, ["a"]), {"a": 7}, m.answered(m.DELETE, 1, [{"name": "a"}])) == 7


def test_new_topic_is_known_by_id():
    t = transcript()
    controller = m.Controller(t)
    t.client_sends(m.create(1, {"a": 20}))
    controller.serve()
    t.client_sends(m.delete(1, [m.id_of("a")]))
    t.broker_answers(messages.versions_are(1, [(3, 0, 11)], version=0))
    t.run_ready()
    assert reserved(t) == 20


def test_recent_topics_are_bounded(monkeypatch):
    monkeypatch.setattr(costs, "MAX_RECENT", 3)
    known = KnownTopics()
    for number in range(5):
        known.changed(f"t{number}", 1, START, bytes([number]) * 16)
    assert [known.recent(f"t{number}", START) for number in range(5)] == [None, None, 1, 1, 1]
    assert [known.name_of(bytes([number]) * 16) for number in range(5)] == [None, None, "t2", "t3", "t4"]


# Other cases.


def test_oversized_mutation_request_ends_connection():
    topics = [{"name": f"topic-{number}" + "x" * 200, "num_partitions": 1, "replication_factor": 1} for number in range(6_000)]
    request = m.create(1, topics)
    t = transcript()
    with pytest.raises(InvalidFrame, match=f"a request of {len(request)} bytes, at most 1048576"):
        t.client_sends(request)
    t = transcript(settings(None))
    t.client_sends(request)
    t.broker_got(request)
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a"}]))
    t.client_got(m.answered(m.CREATE, 1, [{"name": "a"}]))


@pytest.mark.parametrize("key", APIS)
def test_request_without_its_last_byte_ends_connection(key):
    """The broker would close the connection as well, and nobody would learn that nothing was executed."""
    request, _ = costing(key, ["a"], 5)
    t = transcript()
    with pytest.raises(InvalidFrame, match="a field ends"):
        t.client_sends(with_length(request[4:-1]))
    t.broker_got()


def test_topic_lookup_is_split_into_requests():
    names = [f"topic-{number:03}" for number in range(TOPICS_PER_REQUEST + 1)]
    first, last = names[:TOPICS_PER_REQUEST], names[TOPICS_PER_REQUEST:]
    t = transcript()
    request = m.delete(1, names)
    t.client_sends(request)
    t.broker_got(m.metadata_request(1, first), m.metadata_request(1, last))
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(first, 0) | {"topic-000": 2, "topic-001": 2}))
    assert not t.called_ready
    t.broker_answers(m.metadata_answer(1, dict.fromkeys(last, 2)))
    t.run_ready()
    t.broker_got(request)
    assert reserved(t) == 6


@pytest.mark.parametrize("key", APIS)
def test_request_with_too_many_topics_ends_connection(key):
    request, _ = costing(key, [f"t{number}" for number in range(MAX_ELEMENTS + 1)], 1)
    with pytest.raises(InvalidFrame, match="an array of 5001 elements") as caught:
        transcript().client_sends(request)
    assert caught.value.reason == "too_many_elements"


def test_spread_rate_refuses_in_steps():
    t = transcript(settings(5.0, metering={"controller_mutation": Metering("rate", Window(100, 1.0))}))
    controller = m.Controller(t)
    t.client_sends(m.create(1, {f"t{number}": 80 for number in range(8)}))
    controller.serve()
    answer = codec.decode_response(ApiKey.CREATE_TOPICS, 7, bytes(t.client_inbox))
    assert [topic["error_code"] for topic in answer["topics"]] == [0] * 7 + [89]
    assert answer["throttle_time_ms"] == 12_000


def test_changed_quota_applies_to_waiting_request():
    t = transcript(settings(1_000.0))
    t.client_sends(m.create(1, {"a": 30, "b": 30}))
    t.configure(settings(2.0))
    answer_metadata(t, ["a", "b"], {})
    t.broker_got(m.create(1, {"a": 30}))


# Groups.


def in_group(own=None, group=1.0, **rest):
    jobs = Group("jobs", (GroupRule(client_id="etl"),), {"controller_mutation_rate": group})
    rows = settings(own).quotas
    return QuotaSettings((*rows, jobs.quota), groups=(jobs,), **rest)


def group_row(t):
    (row,) = (row for row in rows_of(t.engine, t.now) if row.group)
    return row


@pytest.mark.parametrize("own", [None, 100.0])
def test_strict_request_over_the_groups_ceiling_is_refused(own):
    t = transcript(in_group(own))
    request, topics = costing(m.CREATE, ["a", "b"], 15)
    t.client_sends(request)
    answer_metadata(t, ["a", "b"], topics)
    t.broker_got(costing(m.CREATE, ["a"], 15)[0])
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a"}]))
    t.client_got(m.answered(m.CREATE, 1, [{"name": "a"}, m.refused("b")], throttle_time_ms=4_000))
    assert (group_row(t).tokens, group_row(t).throttled_total) == (11 - 15, 1)
    assert t.row("controller_mutation").throttled_total == 0


def test_permissive_request_waits_for_the_longer_debt():
    t = transcript(in_group(own=2.0, group=1.0))
    t.client_sends(costing(m.CREATE, ["a"], 24, version=4)[0])
    answer_metadata(t, ["a"], {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a"}], version=4))
    t.client_got(m.answered(m.CREATE, 1, [{"name": "a"}], version=4, throttle_time_ms=13_000))
    assert (tokens(t), group_row(t).tokens) == (BURST - 24, 11 - 24)


def test_refused_topics_cost_the_group_nothing():
    t = transcript(in_group())
    t.client_sends(costing(m.CREATE, ["a", "b"], 5)[0])
    answer_metadata(t, ["a", "b"], {})
    t.broker_answers(m.answered(m.CREATE, 1, [{"name": "a", "error_code": 36}, {"name": "b"}]))
    assert group_row(t).tokens == 11 - 5


def test_unenforced_group_only_notes_the_throttle():
    t = transcript(in_group(enforce=False))
    for name in ("a", "b"):
        request, _ = costing(m.CREATE, [name], 15)
        t.client_sends(request)
        answer_metadata(t, [name], {})
        t.broker_got(request)
        t.broker_answers(m.answered(m.CREATE, 1, [{"name": name}]))
    assert group_row(t).throttled_total == 1
    assert not t.paused
