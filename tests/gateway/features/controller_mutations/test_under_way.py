"""Requests whose outcome is unknown: their partitions are reserved, and other requests wait for the broker's answer."""

import pytest

from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.controller_mutations.under_way import LONGEST_SECONDS, UnderWay
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.kinds.controller_mutation import KIND
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS
from gateway.steps import at_once
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.proxy import messages
from tests.gateway.proxy.transcript import START, Transcript
from tests.protocol import codec

RATE, BURST = 2.0, 22
TYPO = 9_999
STRICT, PERMISSIVE = 7, 5
ALL_INT32 = 2**31 - 1


class Clients:
    """Connections of one client-id, with one quota."""

    def __init__(self, number=3, settings=None, versions=dict):
        quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"controller_mutation_rate": RATE})
        self.engine = QuotaEngine(settings or QuotaSettings((quota,)), START)
        self.under_way = UnderWay()
        handlers = mutations.handler_factories(KnownTopics(versions), self.under_way)
        self.all = [Transcript(engine=self.engine, handlers=handlers) for _ in range(number)]

    def __iter__(self):
        return iter(self.all)

    def pass_time(self, seconds):
        for t in self.all:
            t.passes(seconds)
        self.under_way.tick(self.all[0].now)

    @property
    def bucket(self):
        (bucket,) = (each for each in self.engine.buckets() if each.kind is KIND and each.meter is not None)
        return bucket

    @property
    def tokens(self):
        return self.bucket.meter.tokens(self.all[0].now)


def sends(t, number, partitions, *, version=STRICT, name=None):
    """Send a creation, and answer Weir's Metadata request."""
    name = name or f"t{number}"
    t.client_sends(m.create(number, {name: partitions}, version=version))
    t.broker_got(m.metadata_request(number, [name]))
    t.broker_answers(m.metadata_answer(number, {name: 0}))
    t.run_ready()


def answers(t, number, partitions, error=0, *, version=STRICT):
    result = {"name": f"t{number}", "error_code": error, "num_partitions": -1 if error else partitions}
    t.broker_inbox.clear()
    t.broker_answers(m.answered(m.CREATE, number, [result], version=version))


def forwarded(t):
    return len(t.broker_inbox) > 0


def refusals(t, version=STRICT):
    """The throttle time and the error codes of the client's only answer."""
    answer = codec.decode_response(m.CREATE, version, bytes(t.client_inbox))
    t.client_inbox.clear()
    return answer["throttle_time_ms"], [topic["error_code"] for topic in answer["topics"]]


# Other requests wait.


@pytest.mark.parametrize("version", [STRICT, PERMISSIVE])
def test_request_waits_for_the_outcome_of_another(version):
    first, second, _ = clients = Clients()
    sends(first, 1, TYPO)
    sends(second, 2, 1, version=version)
    assert not forwarded(second)
    assert not second.client_inbox
    assert second.counters.muted == 0
    answers(first, 1, TYPO, error=38)
    second.run_ready()
    assert forwarded(second)
    answers(second, 2, 1, version=version)
    assert refusals(second, version) == (0, [0])
    assert clients.tokens == BURST - 1


def test_waiting_strict_request_is_refused_for_a_charge():
    first, second, _ = Clients()
    sends(first, 1, 60)
    sends(second, 2, 1)
    answers(first, 1, 60)
    second.run_ready()
    assert not forwarded(second)
    assert refusals(second) == (19_000, [89])


def test_waiting_permissive_request_is_deferred_for_a_charge():
    first, second, _ = Clients()
    sends(first, 1, 60)
    sends(second, 2, 1, version=PERMISSIVE)
    answers(first, 1, 60)
    second.run_ready()
    assert not forwarded(second)
    assert second.core.throttle.until == START + 19.0


def test_requests_within_the_quota_do_not_wait():
    first, second, third = clients = Clients()
    for number, t in enumerate(clients, start=1):
        sends(t, number, 11)
    assert [forwarded(t) for t in (first, second, third)] == [True, True, True]
    assert clients.bucket.reserved == 33


def test_request_waits_if_only_its_later_topics_depend_on_others():
    """Without the reservation of the other request, there is room for both topics."""
    first, second, _ = Clients()
    sends(first, 1, 20)
    second.client_sends(m.create(2, {"a": 5, "b": 1}))
    second.broker_got(m.metadata_request(2, ["a", "b"]))
    second.broker_answers(m.metadata_answer(2, {"a": 0, "b": 0}))
    second.run_ready()
    assert not forwarded(second)
    answers(first, 1, 20, error=41)
    second.run_ready()
    second.broker_got(m.create(2, {"a": 5, "b": 1}))


def test_waiting_requests_keep_their_order():
    first, *others = Clients(5)
    sends(first, 1, TYPO)
    for number, t in enumerate(others, start=2):
        sends(t, number, TYPO)
    answers(first, 1, TYPO, error=38)
    for number, t in enumerate(others, start=2):
        t.run_ready()
        assert [forwarded(each) for each in others].count(True) == 1
        following = others[number - 1 :]
        if following:
            following[0].run_ready()  # it waits again, before the others
        answers(t, number, TYPO, error=38)
    assert [refusals(t) for t in others] == [(0, [38])] * 4


def test_new_request_waits_behind_waiting_ones():
    first, second, third, fourth = Clients(4)
    sends(first, 1, TYPO)
    sends(second, 2, 1)
    sends(third, 3, 1)
    answers(first, 1, TYPO, error=38)
    sends(fourth, 4, TYPO)
    for t in (second, third, fourth):
        assert not forwarded(t)
        t.run_ready()
    assert [forwarded(t) for t in (second, third, fourth)] == [True, True, True]


def test_waiting_connection_that_is_gone_is_skipped():
    first, second, third = Clients()
    sends(first, 1, TYPO)
    sends(second, 2, 1)
    sends(third, 3, 1)
    second.core.close(second.now)
    answers(first, 1, TYPO, error=38)
    third.run_ready()
    assert forwarded(third)


def test_forecast_error_is_no_answer_during_another_request():
    """Only a debt is a reason to answer by the metadata: then the broker cannot be asked."""
    first, second, _ = Clients()
    sends(first, 1, TYPO)
    second.client_sends(m.create(2, {"there": 5}))
    second.broker_got(m.metadata_request(2, ["there"]))
    second.broker_answers(m.metadata_answer(2, {"there": 1}))
    second.run_ready()
    assert not second.client_inbox
    answers(first, 1, TYPO, error=38)
    second.run_ready()
    second.broker_got(m.create(2, {"there": 5}))


def test_removed_quota_ends_the_wait():
    first, second, _ = clients = Clients()
    sends(first, 1, TYPO)
    sends(second, 2, 1)
    clients.engine.apply(QuotaSettings(), START)
    clients.under_way.tick(START)
    second.run_ready()
    assert forwarded(second)


def test_request_that_is_asked_early_lets_the_next_one_pass():
    first, second, third = clients = Clients()
    sends(first, 1, TYPO)
    sends(second, 2, 1)
    sends(third, 3, 1)
    second.core.ready(START)
    clients.engine.apply(QuotaSettings(), START)
    second.core.ready(START)
    assert forwarded(second)
    third.run_ready()
    assert forwarded(third)


# A request under way is not charged.


def test_request_under_way_mutes_and_publishes_nothing():
    first, _, _ = clients = Clients()
    sends(first, 1, TYPO, version=PERMISSIVE)
    assert (clients.tokens, clients.bucket.amount_total, clients.bucket.throttled_total) == (BURST, 0, 0)
    assert not any(clients.engine.changed())
    assert (first.counters.muted, first.core.facts(START, (0, 0), START).throttled_by) == (0, "")


def test_later_requests_of_its_connection_wait_for_the_answer():
    """As in Kafka, which takes one request of a connection at a time."""
    first, _, _ = Clients()
    sends(first, 1, 1)
    first.broker_inbox.clear()
    first.client_sends(messages.heartbeat(2))
    first.broker_got()
    assert first.paused
    answers(first, 1, 1)
    assert not first.paused
    first.broker_got(messages.heartbeat(2))


def test_reservation_of_a_group_holds_up_its_other_members():
    jobs = Group("jobs", (GroupRule(client_id="*"),), {"controller_mutation_rate": RATE})
    first, second, _ = clients = Clients(settings=QuotaSettings((jobs.quota,), groups=(jobs,)))
    sends(first, 1, TYPO)
    frame = codec.encode_request(
        m.CREATE, 7, {"topics": [{"name": "y", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1}, 2, "other"
    )
    second.client_sends(frame)
    second.broker_inbox.clear()
    second.broker_answers(m.metadata_answer(2, {"y": 0}))
    second.run_ready()
    assert not forwarded(second)
    answers(first, 1, TYPO, error=38)
    second.run_ready()
    second.broker_got(frame)
    assert clients.tokens == BURST


def test_unenforced_quota_reserves_nothing():
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"controller_mutation_rate": RATE})
    first, second, _ = clients = Clients(settings=QuotaSettings((quota,), enforce=False))
    sends(first, 1, TYPO)
    sends(second, 2, 1)
    assert (forwarded(second), clients.bucket.reserved) == (True, 0)


# The end of a connection.


def test_refused_topic_is_free_after_the_client_has_gone():
    first, second, _ = clients = Clients()
    sends(first, 1, ALL_INT32)
    first.core.close(first.now)
    assert first.core.owed
    sends(second, 2, 1)
    answers(first, 1, ALL_INT32, error=44)
    assert not first.core.owed
    second.run_ready()
    answers(second, 2, 1)
    assert clients.tokens == BURST - 1


def test_created_topic_is_charged_after_the_client_has_gone():
    first, _, _ = clients = Clients()
    sends(first, 1, 60, version=PERMISSIVE)
    first.core.close(first.now)
    answers(first, 1, 60, version=PERMISSIVE)
    assert clients.tokens == BURST - 60
    assert (first.core.throttle.active, first.counters.muted) == (False, 0)


def test_answer_that_has_begun_counts_after_the_client_has_gone():
    first, _, _ = clients = Clients()
    sends(first, 1, 60)
    answer = m.answered(m.CREATE, 1, [{"name": "t1", "num_partitions": 60}])
    first.broker_answers(answer[:20])
    first.core.close(first.now)
    assert first.core.owed
    first.broker_answers(answer[20:])
    assert not first.core.owed
    assert clients.tokens == BURST - 60


@pytest.mark.parametrize("answered", [0, 20])
def test_lost_broker_leaves_the_forecast_charged(answered):
    """The controller may have executed the request."""
    first, second, _ = clients = Clients()
    sends(first, 1, 60)
    sends(second, 2, 1)
    first.broker_answers(m.answered(m.CREATE, 1, [{"name": "t1"}])[:answered])
    first.core.lose(first.now)
    second.run_ready()
    assert refusals(second) == (19_000, [89])
    assert clients.bucket.reserved == 0


@pytest.mark.parametrize(
    ("versions", "charged"), [({}, 5), ({m.CREATE: (0, 7)}, 5), ({m.CREATE: (2, 7)}, 0), ({m.GROW: (0, 3)}, 0)]
)
def test_lost_version_that_no_broker_offers_is_free(versions, charged):
    """Brokers close the connection for it, and execute nothing."""
    clients = Clients(versions=lambda: versions)
    sends(clients.all[0], 1, 5, version=1)
    assert clients.bucket.reserved == 5
    clients.all[0].core.lose(clients.all[0].now)
    assert (clients.bucket.amount_total, clients.bucket.reserved) == (charged, 0)


def test_answer_in_an_unexpected_version_is_charged():
    """Another broker of the cluster is older than the one that Weir has asked."""
    clients = Clients(versions=lambda: {m.CREATE: (2, 7)})
    sends(clients.all[0], 1, 5, version=1)
    answers(clients.all[0], 1, 5, version=1)
    assert clients.bucket.amount_total == 5


@pytest.mark.parametrize(("partitions", "charged"), [(60, 60), (ALL_INT32, 10_000)])
def test_missing_answer_is_charged_after_the_longest_time(partitions, charged):
    first, second, _ = clients = Clients()
    sends(first, 1, partitions)
    sends(second, 2, 1)
    clients.pass_time(LONGEST_SECONDS - 1.0)
    second.goes_on()
    assert (clients.bucket.amount_total, second.client_inbox) == (0, b"")
    clients.pass_time(1.0)
    second.goes_on()
    assert clients.bucket.amount_total == charged
    assert refusals(second)[1] == [89]
    answers(first, 1, partitions, error=44)
    assert clients.bucket.amount_total == charged


def test_feature_gives_up_missing_answers():
    feature = ControllerMutations()
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"controller_mutation_rate": RATE})
    t = Transcript(QuotaSettings((quota,)), handlers=dict(feature.handlers()))
    sends(t, 1, 5)
    at_once(feature.tick(START + LONGEST_SECONDS))
    assert t.row("controller_mutation").amount_total == 5


def test_bucket_with_a_reservation_is_not_dropped():
    first, _, _ = clients = Clients()
    sends(first, 1, 60)
    for t in clients:
        t.core.close(t.now)
    bucket = clients.bucket
    assert not bucket.forgettable(START + 7_200.0, 3_600.0)
    answers(first, 1, 60, error=44)
    assert bucket.forgettable(START + 7_200.0, 3_600.0)


def test_debt_has_a_longest_time():
    first, second, _ = Clients()
    sends(first, 1, TYPO)
    answers(first, 1, TYPO)
    sends(second, 2, 1)
    assert refusals(second)[0] == MAX_DEBT_SECONDS * 1_000
