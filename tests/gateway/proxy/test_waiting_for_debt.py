"""A bucket in debt: the causes of the debt, and the requests that wait for its end unforwarded."""

import pytest

from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.proxy.counters import Counters
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.first_requests import MAX_KEPT_TURNS
from gateway.quotas.own_topics import FREE_BURST_SECONDS, FREE_BYTES_PER_SECOND, OwnTopics
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as mutations_messages
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.protocol import codec

# Each quota here is 1 000 bytes/s with a burst of 10 000 bytes.
LIMIT = 1_000


def produce_quota(**settings):
    return limits(produce=LIMIT, **settings)


def entity(user=None, client_id=None, **quotas):
    return EntityQuota(ClientQuotaEntity(user, client_id), quotas)


def indebted(seconds, *, settings=None):
    """An engine whose only client owes `seconds` of its quota."""
    engine = QuotaEngine(settings or produce_quota(), START)
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=10_000 + round(seconds * LIMIT)))
    t.broker_got(m.produce(1, size=10_000 + round(seconds * LIMIT)))
    assert t.paused
    return engine


def debt(engine):
    (row,) = (row for row in rows_of(engine, START) if row.kind == "produce")
    return -row.tokens


def test_claimed_length_is_not_charged():
    t = Transcript(produce_quota())
    request = m.produce(1, size=90_000)
    t.client_sends(request[:104])
    assert t.row().amount_total == 100
    t.core.close(t.now)
    assert t.row().amount_total == 100


@pytest.mark.parametrize("by", [60, 1_000, 89_999])
def test_chunked_request_is_charged_whole(by):
    t = Transcript(produce_quota())
    t.client_sends(m.produce(1, size=90_000), by=by)
    assert t.row().amount_total == 90_000
    assert t.paused
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=80_000))


def test_chunked_request_on_fast_path_is_charged_whole():
    t = Transcript(produce_quota())
    t.client_sends(m.produce(1, size=100))
    t.client_sends(m.produce(2, size=100) + m.produce(3, size=400), by=50)
    assert t.row().amount_total == 600
    assert len(t.core.in_flight) == 3


def test_early_answer_does_not_mute_forever():
    t = Transcript(produce_quota())
    request = m.produce(1, size=10_500)
    t.client_sends(request[:1_000])
    t.broker_answers(m.produced(1))
    t.client_sends(request[1_000:], m.metadata(2))
    t.broker_got(request)
    t.passes(0.5)
    t.broker_got(m.metadata(2))


def test_new_connection_waits_for_debt():
    engine = indebted(3.0)
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=100), m.produce(2, size=100))
    t.broker_got()
    assert t.paused
    t.passes(2.999)
    t.broker_got()
    t.passes(0.001)
    t.broker_got(m.produce(1, size=100))  # and goes over again: one request for each wait
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=100))


def test_new_connections_wait_for_each_other():
    engine = indebted(3.0)
    waiting = [Transcript(engine=engine) for _ in range(3)]
    for t in waiting:
        t.client_sends(m.produce(1, size=2_000))
    for seconds in (3.0, 2.0, 2.0):
        for t in waiting:
            t.passes(seconds)
        waiting.pop(0).broker_got(m.produce(1, size=2_000))
        for t in waiting:
            t.broker_got()


def test_new_connections_wait_for_bytes_that_are_still_to_come():
    """All of the request passes at the end of the wait."""
    engine = indebted(3.0)
    first, second = Transcript(engine=engine), Transcript(engine=engine)
    request = m.produce(1, size=2_000)
    for t in (first, second):
        t.client_sends(request[:100])
    for t in (first, second):
        t.passes(3.0)
    first.client_sends(request[100:])
    first.broker_got(request)
    second.passes(1.0)
    assert second.core.throttle.until - START == pytest.approx(5.0)


@pytest.mark.parametrize("stays", [True, False])
def test_claimed_bytes_delay_nobody_beyond_the_debt(stays):
    engine = indebted(3.0)
    claiming = Transcript(engine=engine)
    claiming.client_sends(m.produce(1, size=100_000_000)[:100])
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=2_000))
    if not stays:
        claiming.core.close(START)
    t.passes(3.0)
    t.broker_got(m.produce(1, size=2_000))


def test_waiting_connection_that_closes_leaves_no_trace():
    engine = indebted(3.0)
    gone = Transcript(engine=engine)
    gone.client_sends(m.produce(1, size=2_000))
    gone.core.close(START)
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=2_000))
    assert t.core.throttle.until - START == pytest.approx(3.0)
    assert debt(engine) == pytest.approx(3_000)


def left_after(t, seconds):
    """The client gives the connection up."""
    t.passes(seconds)
    t.broker_got()
    t.core.close(t.now)


def new_connection(engine, now):
    t = Transcript(engine=engine)
    t.passes(now - START)
    t.client_sends(m.produce(1, size=100))
    return t


def owe(engine, seconds, now):
    """Keep the bucket in debt, as other connections of the client do."""
    only_bucket(engine).record(round(seconds * LIMIT), now)


def test_client_that_gives_up_gets_its_turn_later():
    engine = indebted(40.0)
    left_after(new_connection(engine, START), 30.0)
    owe(engine, 60.0, START + 30.0)
    t = new_connection(engine, START + 30.0)
    t.passes(9.9)
    t.broker_got()
    t.passes(0.1)
    t.broker_got(m.produce(1, size=100))


def test_turn_that_is_given_up_again_stays():
    engine = indebted(70.0)
    for now in (START, START + 30.0):
        owe(engine, 30.0, now)
        left_after(new_connection(engine, now), 30.0)
    t = new_connection(engine, START + 60.0)
    t.passes(40.0)
    t.broker_got(m.produce(1, size=100))


def test_turn_of_closed_connection_lets_one_request_pass():
    engine = indebted(40.0)
    left_after(new_connection(engine, START), 30.0)
    owe(engine, 100.0, START + 30.0)
    first, second = (new_connection(engine, START + 41.0) for _ in range(2))
    first.broker_got(m.produce(1, size=100))
    second.broker_got()


def test_forwarded_request_leaves_no_turn():
    engine = indebted(40.0)
    t = new_connection(engine, START)
    t.passes(40.0)
    t.broker_got(m.produce(1, size=100))
    t.core.close(t.now)
    owe(engine, 100.0, t.now)
    new_connection(engine, t.now).broker_got()


def test_closed_connections_let_few_requests_pass():
    engine = indebted(40.0)
    for _ in range(MAX_KEPT_TURNS + 20):
        left_after(new_connection(engine, START), 0.0)
    owe(engine, 1_000.0, START)
    connections = [new_connection(engine, START + 60.0) for _ in range(MAX_KEPT_TURNS + 20)]
    assert sum(len(t.broker_inbox) > 0 for t in connections) == MAX_KEPT_TURNS


def only_bucket(engine):
    (bucket,) = (bucket for bucket in engine.buckets() if bucket.kind.name == "produce")
    return bucket


def test_refused_request_leaves_the_queue():
    engine = indebted(3.0)
    gate = ProduceGate()
    t = Transcript(engine=engine, gate=gate)
    t.client_sends(m.produce(1, size=2_000))
    gate.delay, gate.paused = 5.0, True
    engine.recall()
    assert only_bucket(engine).first_requests.waiting == 2_000
    t.passes(3.0)
    assert gate.refused_total == 1
    assert only_bucket(engine).first_requests.waiting == 0


def test_request_that_became_free_leaves_the_queue():
    engine = indebted(3.0)
    own = OwnTopics(["own"], START)
    own.take_free(FREE_BYTES_PER_SECOND * int(FREE_BURST_SECONDS), START)
    t = Transcript(engine=engine, own_topics=own)
    t.client_sends(m.produce(1, size=2_000, topics=("own",)))
    t.broker_got()
    t.passes(3.0)
    t.broker_got(m.produce(1, size=2_000, topics=("own",)))
    assert only_bucket(engine).first_requests.waiting == 0


@pytest.mark.parametrize("acks", [-1, 0])
def test_pause_does_not_bypass_debt(acks):
    engine = indebted(30.0)
    gate = ProduceGate()
    gate.delay, gate.paused = 5.0, True
    t = Transcript(engine=engine, gate=gate)
    t.client_sends(m.produce(1, acks=acks))
    gate.delay, gate.paused = 0.0, False
    engine.recall()
    t.passes(5.0)
    t.client_sends(m.produce(2, acks=acks))
    t.broker_got()
    t.passes(25.0)
    assert t.broker_inbox


def test_waiting_request_is_charged_once():
    engine = indebted(3.0)
    t = Transcript(engine=engine)
    request = m.produce(1, size=2_000)
    t.client_sends(request[:500])
    t.passes(3.0)
    t.client_sends(request[500:])
    t.broker_got(request)
    assert t.row().amount_total == 13_000 + 2_000


def test_other_requests_pass_a_debt():
    t = Transcript(engine=indebted(3.0))
    t.client_sends(m.metadata(1))
    t.broker_got(m.metadata(1))


def test_second_request_of_a_connection_does_not_wait():
    engine = QuotaEngine(produce_quota(), START)
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=100))
    other = Transcript(engine=engine)
    other.client_sends(m.produce(1, size=12_900))
    t.client_sends(m.produce(2, size=100))
    t.broker_got(m.produce(1, size=100), m.produce(2, size=100))
    assert t.core.throttle.until - START == pytest.approx(3.1)


def test_unenforced_debt_delays_nobody():
    t = Transcript(engine=QuotaEngine(produce_quota(enforce=False), START))
    t.client_sends(m.produce(1, size=13_000))
    other = Transcript(engine=t.engine)
    other.client_sends(m.produce(1, size=13_000))
    other.broker_got(m.produce(1, size=13_000))
    assert not other.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_new_connection_waits_under_each_algorithm(algorithm):
    engine = indebted(3.0, settings=produce_quota(algorithm=algorithm))
    t = Transcript(engine=engine)
    t.client_sends(m.produce(1, size=100))
    t.broker_got()
    t.passes(t.core.throttle.until - START)
    t.broker_got(m.produce(1, size=100))


def test_debt_is_bounded():
    t = Transcript(limits(produce=10))
    t.client_sends(m.produce(1, size=90_000))
    assert t.core.throttle.until - START == pytest.approx(3_600)


def create_topic(correlation_id, version):
    topics = [{"name": "t", "num_partitions": 5, "replication_factor": 1, "assignments": [], "configs": []}]
    values = {"topics": topics, "timeout_ms": 1_000}
    return codec.encode_request(ApiKey.CREATE_TOPICS, version, values, correlation_id, "etl")


@pytest.mark.parametrize(("version", "waits"), [(5, True), (6, False)])
def test_permissive_creation_waits_for_debt(version, waits):
    settings = QuotaSettings((entity(client_id="etl", controller_mutation_rate=1.0),))
    engine = QuotaEngine(settings, START)
    bucket_of(engine, "controller_mutation", "ANONYMOUS", "etl", START).charge(100, START)
    t = Transcript(engine=engine, handlers=mutations.handler_factories(KnownTopics()))
    t.client_sends(create_topic(1, version))
    t.broker_got(mutations_messages.metadata_request(1, ["t"]))
    t.broker_answers(mutations_messages.metadata_answer(1, {"t": 0}))
    t.run_ready()
    t.broker_got()
    assert t.core.throttle.active
    assert (t.client_inbox == b"") == waits  # a strict one is refused


def test_request_after_refused_waiting_one_waits_for_debt():
    engine, gate = indebted(20.0), ProduceGate()
    t = Transcript(engine=engine, gate=gate)
    t.client_sends(m.produce(2))
    gate.delay, gate.paused = 1.0, True
    engine.recall()
    t.passes(20.0)
    assert t.client_inbox, "a paused volume refuses the request"
    bucket_of(engine, "produce", "ANONYMOUS", "etl", t.now).charge(20 * LIMIT, t.now)
    gate.delay, gate.paused = 0.0, False
    engine.recall()
    t.passes(1.0)
    t.client_sends(m.produce(3))
    t.broker_got()
    t.passes(19.5)
    t.broker_got(m.produce(3))


def test_request_waits_for_other_kind_after_change_of_quotas():
    by_kind = {"request_rate": 10.0, "request_rates.Metadata": 10.0}
    both, one = (QuotaSettings((entity(client_id="etl", **rates),)) for rates in (by_kind, {"request_rates.Metadata": 10.0}))
    engine = QuotaEngine(both, START)
    for kind in ("request_rate", "request_rate.Metadata"):
        bucket_of(engine, kind, "ANONYMOUS", "etl", START).charge(300, START)
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(2))
    t.configure(one)
    t.passes(0.001)
    t.broker_got()
    t.passes(20.0)
    t.broker_got(m.metadata(2))


CHANGES = {
    "a user quota": (entity(user="ANONYMOUS", producer_byte_rate=5_000.0),),
    "a quota of both": (entity(user="ANONYMOUS", client_id="etl", producer_byte_rate=5_000.0),),
    "a default user quota": (entity(user=DEFAULT, producer_byte_rate=5_000.0),),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_new_quota_in_other_bucket_ends_mute(change, algorithm):
    before = entity(client_id="etl", producer_byte_rate=LIMIT)
    t = Transcript(QuotaSettings((before,), algorithm=algorithm))
    t.client_sends(m.produce(1, size=90_000), m.metadata(2))
    t.broker_answers(m.produced(1))
    t.configure(QuotaSettings((before, *CHANGES[change]), algorithm=algorithm))
    t.passes(0.001)
    t.broker_got(m.produce(1, size=90_000), m.metadata(2))


def test_exemption_ends_mute():
    t = Transcript(produce_quota())
    t.client_sends(m.produce(1, size=90_000), m.metadata(2))
    t.broker_answers(m.produced(1))
    exempt = EntityQuota(ClientQuotaEntity("ANONYMOUS", None), {}, exempt=True)
    t.configure(QuotaSettings((exempt,)))
    t.passes(0.001)
    t.broker_got(m.produce(1, size=90_000), m.metadata(2))


def test_good_requests_before_a_bad_frame_are_forwarded():
    t = Transcript(produce_quota())
    with pytest.raises(Exception, match="negative"):
        t.client_sends(m.produce(1, acks=0, size=100), m.produce(2, acks=0, size=100), b"\xff" * 20)
    t.broker_got(m.produce(1, acks=0, size=100), m.produce(2, acks=0, size=100))


def test_wait_is_in_the_latency_of_the_client_alone():
    engine, counters = indebted(2.0), Counters()
    t = Transcript(engine=engine, counters=counters)
    t.client_sends(m.produce(2))
    t.broker_got()
    t.passes(2.0)
    t.broker_got(m.produce(2))
    t.passes(0.25)
    t.broker_answers(m.produced(2))
    t.passes(10)
    t.client_sends(m.produce(3))
    t.passes(0.25)
    t.broker_answers(m.produced(3))
    upstream, moves = counters.latency[ApiKey.PRODUCE], counters.wait_moves[ApiKey.PRODUCE]
    quarter, longer = 19, 22  # slots of 0.25 s to 0.5 s, and of 2 s to 4 s
    assert (upstream[quarter], sum(upstream)) == (2, 2)
    assert (moves[quarter], moves[longer], sum(moves)) == (-1, 1, 0)
    assert counters.latency_seconds[ApiKey.PRODUCE] == pytest.approx(0.5)
    assert counters.wait_seconds[ApiKey.PRODUCE] == pytest.approx(2.0)


# The bucket that clients share beyond `quotas.max_entities`.


class CrowdedOut(Transcript):
    """A client that finds no bucket of its own, and shares one that is in debt for 80 s."""

    def __init__(self):
        super().__init__(
            engine=QuotaEngine(QuotaSettings((entity(client_id=DEFAULT, producer_byte_rate=LIMIT),)), START, max_buckets=3)
        )
        self.others = [bucket_of(self.engine, "produce", "", name, START) for name in "abc"]
        self.shared = bucket_of(self.engine, "produce", "", "d", START)

    def finds_room(self):
        """The other clients leave, and a second passes."""
        for bucket in self.others:
            self.engine.release(bucket, self.now)
        self.passes(1.0)
        self.engine.tick(self.now)
        self.core.find_room(self.now)
        self.passes(0.0)


def muted_for_a_shared_debt():
    t = CrowdedOut()
    t.client_sends(m.produce(1))
    t.shared.record(90_000, t.now)
    t.client_sends(m.produce(2))
    t.broker_answers(m.produced(1), m.produced(2))
    assert t.paused
    return t


def test_waiting_client_leaves_a_shared_debt_once_there_is_room():
    t = CrowdedOut()
    t.shared.record(90_000, t.now)
    t.client_sends(m.produce(1))
    t.broker_got()
    t.finds_room()
    t.broker_got(m.produce(1))


def test_muted_client_leaves_a_shared_debt_once_there_is_room():
    t = muted_for_a_shared_debt()
    t.finds_room()
    assert not t.paused


def test_client_on_the_fast_path_leaves_the_shared_bucket():
    t = CrowdedOut()
    t.client_sends(m.produce(1))
    t.client_sends(m.produce(2))
    t.finds_room()
    shared = t.shared.amount_total
    t.client_sends(m.produce(3))
    assert (t.shared.amount_total, t.row().amount_total) == (shared, len(m.produce(3)) - 4)


def test_client_stays_muted_for_a_shared_debt_without_room():
    t = muted_for_a_shared_debt()
    t.core.find_room(t.now)
    t.passes(79.0)
    assert t.paused
