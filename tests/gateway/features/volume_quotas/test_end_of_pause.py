"""Idempotent producers at the end of a volume pause, as a transcript: no batch overtakes a refused one."""

import pytest

from gateway.features.topic_quotas.produce_inspector import MESSAGE, TopicInspection
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.proxy.handler import EndConnection
from gateway.proxy.handlers.produce import PAUSED_MESSAGE
from gateway.proxy.sequence_gaps import BEHIND_MESSAGE, MAX_GAPS
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from tests.gateway.features.volume_quotas.test_paused_produce import MUTED, USAGE, Gated
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START
from tests.protocol import codec

VERSIONS = [3, 8, 9, 13]
CHUNKS = [None, 1, 40]


def produce(correlation_id, partitions, *, version=9, acks=-1):
    """`partitions`: records by partition."""
    data = [{"index": index, "records": records} for index, records in partitions.items()]
    values = {"acks": acks, "timeout_ms": 1000, "topic_data": [m._topic(version, "name") | {"partition_data": data}]}
    return codec.encode_request(ApiKey.PRODUCE, version, values, correlation_id, "etl")


def numbered(correlation_id, sequence, *, partition=0, version=9, acks=-1, **producer):
    return produce(correlation_id, {partition: m.numbered_batch(sequence, **producer)}, version=version, acks=acks)


def answered(correlation_id, errors, *, message=BEHIND_MESSAGE, version=9, throttle_time_ms=0):
    """`errors`: the error by partition."""
    results = []
    for index, error in errors.items():
        result = {"index": index, "error_code": error, "base_offset": -1 if error else 77}
        results.append(result | ({"error_message": message} if error and version >= 8 else {}))
    values = {"responses": [m._topic(version, "name") | {"partition_responses": results}], "throttle_time_ms": throttle_time_ms}
    return codec.encode_response(ApiKey.PRODUCE, version, values, correlation_id)


class Ended(Gated):
    """A pause has refused the producer's first batches, and has ended before the client had the answer."""

    def __init__(self, *requests):
        super().__init__()
        self.topics = self.core.requests._produce._topics
        self.set(MUTED, paused=True)
        self.client_sends(*requests)
        self.goes_on()
        self.broker_got()
        self.client_inbox.clear()
        self.set(0.0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", CHUNKS)
def test_later_batch_waits_for_the_refused_one(version, by):
    """A broker that does not know the producer would accept batch 1 as its first."""
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(numbered(1, 0, version=version), by=by)
    error = {0: ErrorCode.NOT_ENOUGH_REPLICAS}
    t.client_got(answered(1, error, message=PAUSED_MESSAGE, version=version, throttle_time_ms=5_000))
    t.set(0.0)
    t.client_sends(numbered(2, 1, version=version), by=by)  # sent before the answer arrived
    t.client_got(answered(2, error, version=version))
    t.broker_got()
    retries = numbered(3, 0, version=version), numbered(4, 1, version=version)
    t.client_sends(*retries, by=by)
    t.broker_got(*retries)
    t.broker_answers(answered(3, {0: 0}, version=version), answered(4, {0: 0}, version=version))
    t.client_got(answered(3, {0: 0}, version=version), answered(4, {0: 0}, version=version))


def test_batch_held_by_the_mute_waits_for_the_refused_one():
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(numbered(1, 0))
    t.client_inbox.clear()
    t.client_sends(numbered(2, 1))
    t.set(0.0)
    t.client_got(answered(2, {0: ErrorCode.NOT_ENOUGH_REPLICAS}))
    t.broker_got()


@pytest.mark.parametrize("records", [b"some records", m.numbered_batch(5, producer_id=-1)])
def test_producer_without_sequences_passes_after_the_pause(records):
    t = Ended(produce(1, {0: records}))
    t.client_sends(produce(2, {0: records}))
    t.broker_got(produce(2, {0: records}))
    assert t.core.client.hot_buckets


@pytest.mark.parametrize("other", [{"partition": 1}, {"producer_id": 8}, {"epoch": 1}])
def test_batch_of_another_sequence_passes(other):
    t = Ended(numbered(1, 0))
    t.client_sends(numbered(2, 1, **other))
    t.broker_got(numbered(2, 1, **other))


def test_other_partitions_of_a_request_pass():
    first, later = m.numbered_batch(0), m.numbered_batch(1)
    t = Ended(produce(1, {0: first}))
    t.client_sends(produce(2, {0: later, 1: later}))
    t.broker_got(produce(2, {1: later}))
    t.broker_answers(answered(2, {1: 0}))
    t.client_got(answered(2, {0: ErrorCode.NOT_ENOUGH_REPLICAS, 1: 0}))


def test_resent_batch_restores_the_fast_path():
    t = Ended(numbered(1, 0), numbered(2, 1))
    t.client_sends(numbered(3, 0))
    assert not t.core.client.hot_buckets
    t.client_sends(numbered(4, 1))
    assert t.core.client.hot_buckets
    t.broker_got(numbered(3, 0), numbered(4, 1))


def test_batch_behind_a_gap_without_answer_ends_connection():
    t = Ended(numbered(1, 0))
    with pytest.raises(EndConnection, match="acks=0"):
        t.client_sends(numbered(2, 1, acks=0))
    t.broker_got()


def test_second_pause_keeps_the_first_missing_batch():
    t = Ended(numbered(1, 0))
    t.set(MUTED, paused=True)
    t.client_sends(numbered(2, 1))
    t.set(0.0)
    t.client_inbox.clear()
    t.client_sends(numbered(3, 2))
    t.client_got(answered(3, {0: ErrorCode.NOT_ENOUGH_REPLICAS}))
    t.client_sends(numbered(4, 0), numbered(5, 1))
    t.broker_got(numbered(4, 0), numbered(5, 1))


def test_gaps_of_refused_requests_are_bounded():
    t = Ended(produce(1, {index: m.numbered_batch(0) for index in range(MAX_GAPS + 10)}))
    assert len(t.core.requests._produce.gaps._missing) == MAX_GAPS


class Inspected(Ended):
    """The same with topic quotas that no topic is over."""

    def __init__(self, *requests):
        super().__init__(*requests)
        quotas = TopicQuotas(TopicSettings(1e9), START, own=self.own_topics)
        self.topics.make_inspector = TopicInspection(quotas, 89, lambda rejection, now: None).open
        self.engine.recall()


def test_topic_quotas_wait_for_a_batch_that_a_pause_refused():
    t = Inspected(numbered(1, 0))
    t.client_sends(numbered(2, 1))
    t.client_got(answered(2, {0: 89}, message=MESSAGE))
    t.client_sends(numbered(3, 0), numbered(4, 1))
    t.broker_got(numbered(3, 0), numbered(4, 1))


def test_topic_quotas_take_missing_batches_of_own_topics():
    def request(correlation_id):
        partitions = [{"index": 0, "records": m.numbered_batch(0)}]
        topics = [{"name": name, "partition_data": partitions} for name in (m.TOPIC, USAGE)]
        values = {"acks": -1, "timeout_ms": 1000, "topic_data": topics}
        return codec.encode_request(ApiKey.PRODUCE, 9, values, correlation_id, "etl")

    t = Inspected(request(1))
    t.own_topics.rename([USAGE])
    t.client_sends(request(2))
    t.broker_got(request(2))
    assert not t.core.requests._produce.gaps.pending
