"""Produce under topic quotas, as a transcript: Weir counts bytes, and rejects partitions of topics over their share."""

import uuid
from contextlib import nullcontext

import pytest

from gateway.features.topic_quotas.produce_inspector import MESSAGE, TopicInspection
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.features.topic_quotas.scoped_quotas import ScopedTopicQuotas
from gateway.proxy.counters import Counters
from gateway.proxy.handler import EndConnection
from gateway.proxy.handlers.produce import MAX_KEPT
from gateway.proxy.handlers.sasl import SaslObserver
from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.produce_gate import ProducedTopics
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.features.topic_quotas.listing import list_topics
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_sasl_handler import authenticate, handshake, handshaken
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.protocol import codec

VERSIONS = range(14)
CHUNKS = [None, 1, 7, 100]
HOT, COLD, NEW = "hot", "cold", "new"
IDS = {HOT: bytes([1]) * 16, COLD: bytes([2]) * 16}
ERROR = 19


def field(version, name):
    return {"topic_id": uuid.UUID(bytes=IDS.get(name, bytes([9]) * 16))} if version >= 13 else {"name": name}


def produce(correlation_id, *topics, version=9, acks=-1):
    """`topics`: (name, {partition: records})."""
    data = [
        field(version, name)
        | {"partition_data": [{"index": index, "records": records} for index, records in partitions.items()]}
        for name, partitions in topics
    ]
    values = {"acks": acks, "timeout_ms": 1000, "topic_data": data}
    return codec.encode_request(ApiKey.PRODUCE, version, values, correlation_id, "etl")


def produced(correlation_id, *topics, version=9, throttle_time_ms=0, **values):
    """`topics`: (name, {partition: error}); offsets are -1 with an error, and Weir's own error has a message."""
    data = []
    for name, partitions in topics:
        results = []
        for index, error in partitions.items():
            result = {"index": index, "error_code": error, "base_offset": 0 if error == 0 else -1}
            if error == ERROR and version >= 8:
                result["error_message"] = MESSAGE
            results.append(result)
        data.append(field(version, name) | {"partition_responses": results})
    values |= {"throttle_time_ms": throttle_time_ms} if version >= 1 else {}
    return codec.encode_response(ApiKey.PRODUCE, version, {"responses": data} | values, correlation_id)


class Metered(Transcript):
    """A session with topic quotas: 1000 bytes a second in all, and a window of a second."""

    def __init__(self, settings=None, *, enforce=True, on=True, **rest):
        self.rejections = []
        self.topics = ProducedTopics()
        self.gate = TopicInspection(self.quotas_of(enforce), ERROR, lambda rejection, now: self.rejections.append(rejection))
        self.topics.make_inspector = self.gate.open if on else None
        super().__init__(settings or limits(), topics=self.topics, **rest)

    @staticmethod
    def quotas_of(enforce=True):
        quotas = TopicQuotas(
            TopicSettings(1_000, meter="window", window=Window(2, 1.0), enforce=enforce), START, own=OwnTopics()
        )
        list_topics(quotas, IDS)
        return quotas

    def switch(self, *, on):
        self.topics.make_inspector = self.gate.open if on else None
        self.engine.recall()

    def goes_over(self):
        """The total is over its threshold, because of the hot topic."""
        self.gate.quotas.appended(HOT.encode(), 5_000, self.now, by_id=False)

    def counted(self):
        rows = at_once(self.gate.quotas.rows(self.now))
        return {row.topic: (row.appended_bytes, row.throttled_bytes, dict(row.refused_bytes)) for row in rows}


def test_disabled_quotas_keep_fast_path():
    t = Metered(on=False)
    t.client_sends(m.produce(1), m.produce(2))
    t.broker_got(m.produce(1), m.produce(2))
    assert t.core.client.hot_buckets
    t.broker_answers(m.produced(1), m.produced(2))
    t.client_got(m.produced(1), m.produced(2))
    assert t.counted() == {HOT: (0, 0, {}), COLD: (0, 0, {})}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", CHUNKS)
def test_appended_bytes_count_after_broker_answer(version, by):
    t = Metered()
    one = produce(1, (HOT, {0: b"x" * 300, 1: b"y" * 10}), (COLD, {5: b"z" * 50}), version=version)
    two = produce(2, (HOT, {0: b"x" * 40}), version=version)
    t.client_sends(one, m.heartbeat(3), two, by=by)
    t.broker_got(one, m.heartbeat(3), two)
    assert t.counted() == {HOT: (0, 0, {}), COLD: (0, 0, {})}
    first = produced(1, (HOT, {0: 0, 1: 10}), (COLD, {5: 0}), version=version)
    t.broker_answers(first, m.beat(3), produced(2, (HOT, {0: 0}), version=version), by=by)
    t.client_got(first, m.beat(3), produced(2, (HOT, {0: 0}), version=version))
    assert t.counted() == {HOT: (340, 0, {"MESSAGE_TOO_LARGE": 10}), COLD: (50, 0, {})}
    assert [(each.topic, each.reason, each.size) for each in t.rejections] == [(HOT, "MESSAGE_TOO_LARGE", 10)]
    assert t.counters.requests[ApiKey.PRODUCE] == 2


@pytest.mark.parametrize("broker", [1, 2])
def test_topic_is_rejected_at_the_broker_that_is_over(broker):
    t = Metered()
    quotas = ScopedTopicQuotas(t.gate.quotas.settings, START, own=OwnTopics(), by_broker=True)
    t.gate.at_broker = quotas.of
    quotas.of(1).appended(HOT.encode(), 5_000, START, by_id=False)
    t.core.client.broker = broker
    t.client_sends(produce(1, (HOT, {0: b"x" * 300})))
    t.broker_got(*([produce(1, (HOT, {0: b"x" * 300}))] if broker == 2 else []))
    assert [each.reason for each in t.rejections] == (["quota"] if broker == 1 else [])


@pytest.mark.parametrize("error", [0, 7, 20])
def test_appended_bytes_count_despite_late_replicas(error):
    t = Metered()
    t.client_sends(produce(1, (HOT, {0: b"x" * 300})))
    t.broker_answers(produced(1, (HOT, {0: error})))
    assert t.counted()[HOT] == (300, 0, {})


def test_last_records_of_a_repeated_partition_count():
    """Kafka's `handleProduceRequest` keeps the records of a partition in a map."""
    t = Metered()
    partitions = [{"index": 0, "records": b"x" * 300}, {"index": 1, "records": b"y" * 10}, {"index": 0, "records": b"z" * 40}]
    values = {"acks": -1, "timeout_ms": 1000, "topic_data": [{"name": HOT, "partition_data": partitions}]}
    t.client_sends(codec.encode_request(ApiKey.PRODUCE, 9, values, 1, "etl"))
    t.broker_answers(produced(1, (HOT, {0: 0, 1: 0})))
    assert t.counted()[HOT] == (50, 0, {})


def named_twice(*records, version=9, acks=-1, entries=1):
    """A request with records for partition 0 of the hot topic, some of them in a further entry for the topic."""
    partitions = [{"index": 0, "records": each} for each in records]
    parts = [partitions] if entries == 1 else [partitions[:1], partitions[1:]]
    data = [field(version, HOT) | {"partition_data": part} for part in parts]
    values = {"acks": acks, "timeout_ms": 1000, "topic_data": data}
    return codec.encode_request(ApiKey.PRODUCE, version, values, 1, "etl")


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("error", [76, 87])
@pytest.mark.parametrize("records", [(b"x" * 300, b"0"), (b"0", b"x" * 300), (b"x" * 300, b"0", b"y" * 20)])
def test_valid_records_beside_invalid_ones_count(version, entries, error, records):
    """Kafka's `handleProduceRequest` appends the valid ones, and answers with the error of the others."""
    t = Metered()
    t.client_sends(named_twice(*records, version=version, entries=entries))
    answer = produced(1, (HOT, {0: error}), version=version)
    t.broker_answers(answer)
    t.client_got(answer)
    assert t.counted()[HOT] == (300, 0, {})


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("error", [2, 3, 6, 10, 29])
def test_other_errors_of_a_repeated_partition_do_not_count(acks, error):
    t = Metered()
    t.client_sends(named_twice(b"x" * 300, b"x" * 20, acks=acks))
    with pytest.raises(EndConnection) if acks == 0 else nullcontext():
        t.broker_answers(produced(1, (HOT, {0: error})))
    assert t.counted()[HOT][0] == 0


def test_invalid_records_of_one_partition_do_not_count():
    t = Metered()
    t.client_sends(produce(1, (HOT, {0: b"x" * 300, 1: b"x" * 20}), (COLD, {0: b"x"})))
    t.broker_answers(produced(1, (HOT, {0: 87, 1: 0}), (COLD, {0: 87})))
    assert t.counted() == {HOT: (20, 0, {"INVALID_RECORD": 300}), COLD: (0, 0, {"INVALID_RECORD": 1})}


def unanswered(correlation_id, size, topic=HOT, acks=0, version=9):
    return produce(correlation_id, (topic, {0: b"x" * size}), acks=acks, version=version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", CHUNKS)
def test_unanswered_request_counts_by_an_answer_of_its_own(version, by):
    """The broker gets it with acks=1. The client sees no answer, and the others in order."""
    t = Metered()
    both = (HOT, {0: b"x" * 300, 1: b"y" * 10}), (COLD, {5: b"z" * 50})
    t.client_sends(m.heartbeat(1), produce(2, *both, version=version, acks=0), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1), produce(2, *both, version=version, acks=1), m.heartbeat(3))
    assert not t.core.idle
    results = (HOT, {0: 0, 1: 0}), (COLD, {5: 0})
    t.broker_answers(m.beat(1), produced(2, *results, version=version, throttle_time_ms=400), m.beat(3), by=by)
    t.client_got(m.beat(1), m.beat(3))
    assert t.counted() == {HOT: (310, 0, {}), COLD: (50, 0, {})}
    assert t.core.idle
    assert not t.paused
    assert t.counters.requests[ApiKey.PRODUCE] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_transactional_id_stands_before_the_acks(version):
    t = Metered()
    values = {"timeout_ms": 1000, "topic_data": []} | ({"transactional_id": "T" * 200} if version >= 3 else {})
    sent, got = (codec.encode_request(ApiKey.PRODUCE, version, values | {"acks": acks}, 1, "etl") for acks in (0, 1))
    t.client_sends(sent, by=7)
    t.broker_got(got)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("by", CHUNKS)
def test_refused_partition_of_unanswered_request_ends_connection(over, by):
    """As in Kafka, which appends the other partitions. The answers to earlier requests come first."""
    t = Metered()
    if over:
        t.goes_over()
    t.client_sends(m.heartbeat(1), produce(2, (COLD, {0: b"x" * 300}), ("made-up", {0: b"x"}), acks=0), unanswered(3, 20, COLD))
    answers = m.beat(1), produced(2, (COLD, {0: 0}), ("made-up", {0: 3})), produced(3, (COLD, {0: 0}))
    with pytest.raises(EndConnection, match=r"the broker refuses a partition \(UNKNOWN_TOPIC_OR_PARTITION\)"):
        t.broker_answers(*answers[:2], by=by)
    t.client_got(m.beat(1))
    t.core.connection.take_no_more()
    t.broker_answers(answers[2], by=by)
    t.core.close(t.now)
    assert t.counted()[COLD] == (320, 0, {})
    assert not t.core.owed


def test_answers_in_one_chunk_count_behind_a_refused_partition():
    t = Metered()
    t.client_sends(unanswered(1, 300), unanswered(2, 20), produce(3, (COLD, {0: b"z"})))
    with pytest.raises(EndConnection, match="MESSAGE_TOO_LARGE"):
        t.broker_answers(produced(1, (HOT, {0: 10})), produced(2, (HOT, {0: 0})), produced(3, (COLD, {0: 0})))
    assert t.counted() == {HOT: (20, 0, {"MESSAGE_TOO_LARGE": 300}), COLD: (1, 0, {})}
    assert t.core.idle


def test_made_up_topics_take_nothing_from_others():
    t = Metered()
    before = t.gate.quotas.default_threshold
    t.client_sends(*(unanswered(number, 5_000, f"made-up-{number}") for number in range(50)))
    with pytest.raises(EndConnection):
        t.broker_answers(*(produced(number, (f"made-up-{number}", {0: 3})) for number in range(50)))
    assert t.gate.quotas.default_threshold == before
    assert not t.gate.quotas.over(t.now)
    assert t.counted()[HOT] == t.counted()[COLD] == (0, 0, {})


def test_unanswered_requests_count_after_the_client_has_gone():
    """No client waits for them. A refused partition then ends nothing."""
    t = Metered()
    t.client_sends(unanswered(1, 300), unanswered(2, 20), unanswered(3, 4))
    t.core.close(t.now)
    t.broker_got(unanswered(1, 300, acks=1), unanswered(2, 20, acks=1), unanswered(3, 4, acks=1))
    t.broker_answers(produced(1, (HOT, {0: 0})), produced(2, (HOT, {0: 10})))
    assert t.core.owed
    t.broker_answers(produced(3, (HOT, {0: 0})))
    assert t.counted()[HOT] == (304, 0, {"MESSAGE_TOO_LARGE": 20})
    assert not t.core.owed


def test_unanswered_requests_in_flight_are_bounded():
    t = Metered()
    numbers = range(MAX_IN_FLIGHT + 10)
    t.client_sends(*(unanswered(number, 1) for number in numbers))
    t.goes_on()
    assert t.paused
    t.broker_got(*(unanswered(number, 1, acks=1) for number in numbers[: MAX_IN_FLIGHT + 1]))
    t.broker_answers(*(produced(number, (HOT, {0: 0})) for number in numbers[:600]))
    t.goes_on()
    t.broker_got(*(unanswered(number, 1, acks=1) for number in numbers[MAX_IN_FLIGHT + 1 :]))
    assert not t.paused


@pytest.mark.parametrize("enforce", [False, True])
def test_unanswered_request_mutes_its_client_as_before(enforce):
    """The mute waits for no answer, and the broker's throttle time is not Weir's."""
    t = Metered(limits(produce=100), enforce=enforce)
    t.client_sends(unanswered(1, 2_000), m.heartbeat(2))
    t.broker_got(unanswered(1, 2_000, acks=1))
    t.passes(60.0)
    t.broker_got(m.heartbeat(2))
    t.broker_answers(produced(1, (HOT, {0: 0}), throttle_time_ms=5_000), m.beat(2))
    t.client_got(m.beat(2))
    assert t.counted()[HOT][0] == 2_000


def test_unanswered_request_of_an_exempt_client_counts():
    exempt = QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt_from=("topics",)),))
    t = Metered(exempt)
    t.goes_over()
    t.client_sends(unanswered(1, 30))
    t.broker_got(unanswered(1, 30, acks=1))
    t.broker_answers(produced(1, (HOT, {0: 0})))
    assert t.counted()[HOT] == (5_030, 0, {})


def test_unanswered_request_counts_at_its_broker():
    t = Metered()
    quotas = ScopedTopicQuotas(t.gate.quotas.settings, START, own=OwnTopics(), by_broker=True)
    t.gate.at_broker = quotas.of
    t.core.client.broker = 2
    t.client_sends(unanswered(1, 300))
    t.broker_answers(produced(1, (HOT, {0: 0})))
    assert [quotas.of(broker).rate(t.now) > 0.0 for broker in (1, 2)] == [False, True]


def test_unanswered_request_passes_without_topic_quotas():
    t = Metered(on=False)
    t.client_sends(unanswered(1, 300), unanswered(2, 20))
    t.broker_got(unanswered(1, 300), unanswered(2, 20))
    assert t.core.idle
    t.switch(on=True)
    t.client_sends(unanswered(3, 5)[:-2])
    t.switch(on=False)
    t.client_sends(unanswered(3, 5)[-2:], unanswered(4, 6))
    t.broker_got(unanswered(3, 5, acks=1), unanswered(4, 6))
    t.broker_answers(produced(3, (HOT, {0: 0})))
    assert t.counted()[HOT] == (5, 0, {})
    t.client_got()


def test_unanswered_requests_pass_before_another_login():
    """A broker takes nothing but SaslAuthenticate behind a SaslHandshake (KIP-368)."""
    t = Metered(handlers=SaslObserver(Counters(), "sub").handler_factories())
    t.client_sends(unanswered(1, 300), unanswered(2, 20), handshake(3, "PLAIN"))
    t.broker_got(unanswered(1, 300, acks=1), unanswered(2, 20, acks=1), handshake(3, "PLAIN"))
    t.broker_answers(produced(1, (HOT, {0: 0})), produced(2, (HOT, {0: 0})), handshaken(3))
    assert t.counted()[HOT] == (320, 0, {})
    t.client_got(handshaken(3))
    t.client_sends(authenticate(4, b"\0alice\0secret"))
    t.broker_got(authenticate(4, b"\0alice\0secret"))


def test_answers_count_after_the_client_has_gone():
    t = Metered()
    t.client_sends(m.fetch(1), produce(2, (HOT, {0: b"x" * 300})), m.metadata(3))
    t.core.close(t.now)
    assert t.core.in_flight
    t.broker_answers(m.fetched(1, size=5_000), produced(2, (HOT, {0: 0})))
    assert t.counted()[HOT] == (300, 0, {})
    t.broker_answers(m.described(3, []))
    assert not t.core.in_flight
    t.client_got()


@pytest.mark.parametrize("acks", [-1, 0])
def test_cut_request_is_not_awaited_after_the_client_has_gone(acks):
    """The broker would never answer it, and its connection would stay."""
    t = Metered()
    t.client_sends(produce(1, (HOT, {0: b"x" * 300})), produce(2, (HOT, {0: b"x" * 300}), acks=acks)[:-1])
    t.core.close(t.now)
    assert t.core.owed
    t.broker_answers(produced(1, (HOT, {0: 0})))
    assert t.counted()[HOT] == (300, 0, {})
    assert not t.core.owed


def test_other_answers_do_not_count_after_the_client_has_gone():
    t = Metered()
    t.client_sends(m.fetch(1), m.metadata(2))
    t.core.close(t.now)
    assert not t.core.in_flight


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", CHUNKS)
def test_hot_topic_over_total_is_cut_and_answers_merged(version, by):
    t = Metered()
    t.goes_over()
    t.client_sends(
        m.heartbeat(1),
        produce(2, (HOT, {0: b"x" * 300}), (COLD, {5: b"z" * 50, 6: b""}), (HOT, {3: None}), version=version),
        m.heartbeat(3),
        by=by,
    )
    t.broker_got(m.heartbeat(1), produce(2, (COLD, {5: b"z" * 50, 6: b""}), version=version), m.heartbeat(3))
    t.broker_answers(m.beat(1), produced(2, (COLD, {5: 0, 6: 0}), version=version), m.beat(3), by=by)
    merged = produced(2, (HOT, {0: ERROR}), (COLD, {5: 0, 6: 0}), (HOT, {3: ERROR}), version=version)
    t.client_got(m.beat(1), merged, m.beat(3))
    assert t.counted() == {HOT: (5_000, 300, {}), COLD: (50, 0, {})}
    assert t.counters.requests[ApiKey.PRODUCE] == 1


@pytest.mark.parametrize("partitions", [MAX_KEPT - 3, MAX_KEPT - 2])
def test_request_behind_a_long_cut_one_waits(partitions):
    """Of 20 000 topics in 60 KB, Weir keeps 7 MB until the answer. A client may pipeline dozens behind a long poll."""
    t = Metered()
    t.goes_over()
    cold = (COLD, dict.fromkeys(range(partitions), b"z"))
    t.client_sends(produce(1, (HOT, {0: b"x"}), cold), m.heartbeat(2))
    waits = partitions + 3 > MAX_KEPT
    t.broker_got(produce(1, cold), *([] if waits else [m.heartbeat(2)]))
    t.broker_answers(produced(1, (COLD, dict.fromkeys(range(partitions), 0))))
    t.client_got(produced(1, (HOT, {0: ERROR}), (COLD, dict.fromkeys(range(partitions), 0))))
    t.broker_got(*([m.heartbeat(2)] if waits else []))


def test_request_behind_many_short_cut_ones_waits():
    t = Metered()
    t.goes_over()
    cold = (COLD, dict.fromkeys(range(7), b"z"))
    answered = produced(1, (COLD, dict.fromkeys(range(7), 0)))
    at_once = MAX_KEPT // 10 + 1
    requests = [produce(1, (HOT, {0: b"x"}), cold)] * (at_once + 1)
    t.client_sends(*requests)
    t.broker_got(*[produce(1, cold)] * at_once)
    t.broker_answers(*[answered] * (at_once - 1))
    t.broker_got()
    t.broker_answers(answered)
    t.broker_got(produce(1, cold))


def test_long_request_without_a_cut_is_not_awaited():
    t = Metered()
    t.goes_over()
    request = produce(1, (COLD, dict.fromkeys(range(2 * MAX_KEPT), b"z")))
    t.client_sends(request, m.heartbeat(2))
    t.broker_got(request, m.heartbeat(2))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", CHUNKS)
def test_request_with_nothing_left_is_answered_in_turn(version, by):
    t = Metered()
    t.goes_over()
    t.client_sends(m.heartbeat(1), produce(2, (HOT, {0: b"x" * 300}), version=version), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1), m.heartbeat(3))
    t.client_got()
    t.broker_answers(m.beat(1), m.beat(3), by=by)
    t.client_got(m.beat(1), produced(2, (HOT, {0: ERROR}), version=version), m.beat(3))
    assert t.counted()[HOT] == (5_000, 300, {})


def test_cold_topics_pass_over_total():
    t = Metered()
    t.goes_over()
    request = produce(1, (COLD, {0: b"z" * 50}), (NEW, {0: b"n"}))
    t.client_sends(request)
    t.broker_got(request)
    t.broker_answers(produced(1, (COLD, {0: 0}), (NEW, {0: 0})))
    t.client_got(produced(1, (COLD, {0: 0}), (NEW, {0: 0})))
    assert t.counted()[COLD] == (50, 0, {})
    assert t.counted()[NEW] == (1, 0, {})


def test_topic_is_admitted_when_rate_falls():
    t = Metered()
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x"})))
    t.client_got(produced(1, (HOT, {0: ERROR})))
    t.passes(5.0)
    t.client_sends(produce(2, (HOT, {0: b"x"})))
    t.broker_got(produce(2, (HOT, {0: b"x"})))


@pytest.mark.parametrize("by", [None, 7])
def test_cut_unanswered_request_ends_connection(by):
    t = Metered()
    t.goes_over()
    with pytest.raises(EndConnection, match="acks=0"):
        t.client_sends(produce(1, (HOT, {0: b"x" * 30}), (COLD, {0: b"z"}), acks=0), m.heartbeat(2), by=by)
    t.core.close(t.now)
    t.broker_got(produce(1, (COLD, {0: b"z"}), acks=1))
    assert t.core.owed
    t.broker_answers(produced(1, (COLD, {0: 0})))
    assert t.counted() == {HOT: (5_000, 30, {}), COLD: (1, 0, {})}
    assert not t.core.owed


def test_unanswered_request_with_nothing_left_is_not_awaited():
    t = Metered()
    t.goes_over()
    with pytest.raises(EndConnection, match="acks=0"):
        t.client_sends(unanswered(1, 30))
    t.broker_got()
    assert t.core.idle


def test_uncut_unanswered_request_passes():
    t = Metered()
    t.goes_over()
    t.client_sends(produce(1, (COLD, {0: b"z"}), acks=0), m.heartbeat(2))
    t.broker_got(produce(1, (COLD, {0: b"z"}), acks=1), m.heartbeat(2))
    t.broker_answers(produced(1, (COLD, {0: 0})), m.beat(2))
    t.client_got(m.beat(2))
    assert t.counted()[COLD] == (1, 0, {})


def test_client_quota_is_charged_for_rejected_bytes():
    t = Metered(limits(produce=100))
    request = produce(1, (HOT, {0: b"x" * 2_000}))
    t.goes_over()
    t.client_sends(request)
    left = int((len(request) - 4 - 1_000) * 10)
    t.client_got(produced(1, (HOT, {0: ERROR}), throttle_time_ms=left))
    t.broker_got()
    assert t.paused
    assert t.row().amount_total == len(request) - 4


@pytest.mark.parametrize("by", [None, 100])
def test_collected_request_pays_for_its_bytes_as_they_arrive(by):
    t = Metered(limits(produce=1_000))
    t.goes_over()
    request = produce(1, (COLD, {0: b"x" * 2_000}))
    t.client_sends(request[:1_004], by=by)
    t.broker_got()
    assert t.row().amount_total == 1_000
    t.client_sends(request[1_004:], by=by)
    t.broker_got(request)
    assert t.row().amount_total == len(request) - 4


def test_collected_request_that_is_never_whole_stays_charged():
    t = Metered(limits(produce=1_000))
    t.goes_over()
    t.client_sends(produce(1, (COLD, {0: b"x" * 2_000}))[:1_004])
    t.core.close(t.now)
    assert t.row().amount_total == 1_000


def test_exempt_client_is_counted_and_never_rejected():
    exempt = QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt_from=("topics",)),))
    t = Metered(exempt)
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 30})))
    t.broker_got(produce(1, (HOT, {0: b"x" * 30})))
    t.broker_answers(produced(1, (HOT, {0: 0})))
    assert t.counted()[HOT] == (5_030, 0, {})


def test_exemption_from_rates_does_not_pass_topic_quotas():
    t = Metered(
        QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt=True, exempt_from=("rates", "volumes")),))
    )
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 30})))
    t.client_got(produced(1, (HOT, {0: ERROR})))
    t.broker_got()


def test_unenforced_rejections_are_only_counted():
    t = Metered(enforce=False)
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 30}), (COLD, {0: b"z"})))
    t.broker_got(produce(1, (HOT, {0: b"x" * 30}), (COLD, {0: b"z"})))
    t.broker_answers(produced(1, (HOT, {0: 0}), (COLD, {0: 0})))
    assert t.counted() == {HOT: (5_030, 30, {}), COLD: (1, 0, {})}
    assert [(each.topic, each.enforced) for each in t.rejections] == [(HOT, False)]


def test_unenforced_quotas_report_no_exempt_client():
    exempt = QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt_from=("topics",)),))
    t = Metered(exempt, enforce=False)
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 30})))
    t.broker_answers(produced(1, (HOT, {0: 0})))
    assert t.counted()[HOT] == (5_030, 0, {})
    assert t.rejections == []


def test_unenforced_rejections_are_counted_once_per_topic():
    """As with enforcement, which decides on a topic before its first partition and reports all its bytes together."""
    t = Metered(enforce=False)
    both = (HOT, {0: b"x" * 3_000, 1: b"x" * 2_000})
    for number in (1, 2):
        t.client_sends(produce(number, both))
        t.broker_answers(produced(number, (HOT, {0: 0, 1: 0})))
    assert [(each.topic, each.size) for each in t.rejections] == [(HOT, 5_000)]


def test_results_of_one_topic_are_counted_by_error():
    t = Metered()
    t.client_sends(produce(1, (HOT, {0: b"x" * 10, 1: b"x" * 20, 2: b"x" * 30, 3: b"x" * 40})))
    t.broker_answers(produced(1, (HOT, {0: 0, 1: 10, 2: 0, 3: 10})))
    assert t.counted()[HOT] == (40, 0, {"MESSAGE_TOO_LARGE": 60})
    assert [(each.reason, each.size) for each in t.rejections] == [("MESSAGE_TOO_LARGE", 60)]


def test_quotas_can_be_switched_on_an_open_connection():
    t = Metered(on=False)
    t.client_sends(m.produce(1), m.produce(2))
    t.broker_answers(m.produced(1), m.produced(2))
    t.switch(on=True)
    t.client_sends(produce(3, (HOT, {0: b"x" * 30})))
    t.broker_answers(produced(3, (HOT, {0: 0})))
    assert t.counted()[HOT] == (30, 0, {})
    t.goes_over()
    t.client_sends(produce(4, (HOT, {0: b"x"})))
    t.switch(on=False)
    t.client_inbox.clear()
    t.client_sends(produce(5, (HOT, {0: b"x" * 30})), produce(6, (HOT, {0: b"x"})))
    assert t.core.client.hot_buckets
    t.broker_answers(produced(5, (HOT, {0: 0})), produced(6, (HOT, {0: 0})))
    t.client_got(produced(5, (HOT, {0: 0})), produced(6, (HOT, {0: 0})))
    assert t.counted()[HOT] == (5_030, 1, {})


def test_requests_in_flight_at_switch_are_kept_apart():
    """All answers look the same, but only the last request is counted. The fast path must not confuse the answers."""
    t = Metered(on=False)
    t.client_sends(produce(1, (HOT, {0: b"x" * 30})), produce(2, (HOT, {0: b"x" * 30})))
    t.switch(on=True)
    t.client_sends(produce(3, (HOT, {0: b"x" * 30})))
    t.broker_answers(*(produced(number, (HOT, {0: 0})) for number in (1, 2, 3)))
    assert t.counted()[HOT] == (30, 0, {})


def test_merged_answer_has_rewritten_addresses():
    t = Metered()
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x"}), (COLD, {0: b"z"}), version=10))
    cold = [(COLD, {0: 6})]
    t.broker_answers(produced(1, *cold, version=10, node_endpoints=m.node_endpoints([(1, "kafka-1.internal", 9093)])))
    endpoints = m.node_endpoints([(1, "weir.example.com", 29_094)])
    t.client_got(produced(1, (HOT, {0: ERROR}), *cold, version=10, node_endpoints=endpoints))
    assert t.counted()[COLD] == (0, 0, {"NOT_LEADER_OR_FOLLOWER": 1})


def test_large_produce_request_is_collected():
    t = Metered()
    t.goes_over()
    large = 9 * 1024 * 1024
    t.client_sends(produce(1, (HOT, {0: bytes(large)}), (COLD, {0: b"z"})), by=256 * 1024)
    t.goes_on()
    t.broker_got(produce(1, (COLD, {0: b"z"})))
    assert t.counted()[HOT] == (5_000, large, {})


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("by", CHUNKS)
def test_request_with_inconsistent_lengths_ends_connection(over, by):
    t = Metered()
    if over:
        t.goes_over()
    frame = bytearray(produce(1, (HOT, {0: b"x" * 30}), version=8))
    frame[-34:-30] = (31).to_bytes(4, "big")  # one byte of records more than there are
    with pytest.raises(InvalidFrame):
        t.client_sends(bytes(frame), by=by)


# Idempotent producers.


def numbered(correlation_id, sequence, *, partition=0, **rest):
    return produce(correlation_id, (HOT, {partition: m.numbered_batch(sequence, **rest)}))


def after_rejected(*requests):
    """A connection whose requests were rejected. Their topic is no longer over its share."""
    t = Metered()
    t.goes_over()
    t.client_sends(*requests)
    t.passes(5.0)
    return t


def test_batches_after_a_rejected_one_wait_for_it():
    """A broker that does not know the producer would accept the second batch as its first. The order would be lost."""
    t = after_rejected(numbered(1, 0))
    t.client_sends(numbered(2, 10), numbered(3, 0, partition=1), numbered(4, 0, producer_id=8))
    t.broker_got(numbered(3, 0, partition=1), numbered(4, 0, producer_id=8))
    t.client_got(produced(1, (HOT, {0: ERROR})), produced(2, (HOT, {0: ERROR})))
    t.client_sends(numbered(5, 0), numbered(6, 10))
    t.broker_got(numbered(5, 0), numbered(6, 10))
    assert not t.core.requests._produce.gaps.pending


def test_first_missing_batch_decides():
    t = after_rejected(numbered(1, 10), numbered(2, 0))
    t.client_sends(numbered(3, 10))
    t.broker_got()
    t.client_sends(numbered(4, 0), numbered(5, 10))
    t.broker_got(numbered(4, 0), numbered(5, 10))


def test_sequence_numbers_wrap_around():
    t = after_rejected(numbered(1, 2**31 - 5))
    t.client_sends(numbered(2, 3))
    t.broker_got()
    t.client_sends(numbered(3, 2**31 - 5), numbered(4, 3))
    t.broker_got(numbered(3, 2**31 - 5), numbered(4, 3))


def test_new_epoch_starts_again():
    t = after_rejected(numbered(1, 40))
    t.client_sends(numbered(2, 50, epoch=1))
    t.broker_got(numbered(2, 50, epoch=1))
    assert not t.core.requests._produce.gaps.pending


def test_requests_of_a_new_producer_id_stream_again():
    """Otherwise all requests of the connection would be collected until it ends."""
    t = after_rejected(numbered(1, 0))
    t.client_sends(numbered(2, 0, producer_id=8))
    t.broker_got(numbered(2, 0, producer_id=8))
    t.client_sends(numbered(3, 10, producer_id=8)[:-1])
    t.broker_got(numbered(3, 10, producer_id=8)[:-1])


def test_missing_batch_is_awaited_after_switch_off():
    t = Metered()
    t.goes_over()
    t.client_sends(numbered(1, 0))
    t.switch(on=False)
    t.client_sends(numbered(2, 10))
    t.broker_got()
    t.passes(5.0)
    t.client_sends(numbered(3, 0), numbered(4, 10))
    t.broker_got(numbered(3, 0), numbered(4, 10))
    assert t.core.client.hot_buckets
