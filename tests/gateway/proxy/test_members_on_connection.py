"""Members of groups under a rate of requests: their connections are muted for a third of the session timeout at most."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec

DEBT = 100.0


def settings(**limits):
    return QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits or {"request_rate": 1.0}),))


def in_debt(key="request_rate", seconds=DEBT, **limits):
    """A gateway whose client has a debt of that many seconds, at 1 unit a second, from its other connections."""
    engine = QuotaEngine(settings(**{key: 1.0} | limits), START)
    kind = {"request_rate": "request_rate", "request_rates.Metadata": "request_rate.Metadata"}[key]
    return engine, bucket_of(engine, kind, "ANONYMOUS", "etl", START), 10 + int(seconds)


def join(number, session=45_000, **values):
    values = {"group_id": "g", "session_timeout_ms": session, "member_id": "m"} | values
    return codec.encode_request(ApiKey.JOIN_GROUP, 9, values, number, "etl")


def joined(number, throttle_time_ms=0, error=0):
    return codec.encode_response(ApiKey.JOIN_GROUP, 9, {"error_code": error, "throttle_time_ms": throttle_time_ms}, number)


def beat(number, throttle_time_ms=0, error=0):
    return codec.encode_response(ApiKey.HEARTBEAT, 4, {"error_code": error, "throttle_time_ms": throttle_time_ms}, number)


def group_heartbeat(number, api):
    return codec.encode_request(api, 0, {"group_id": "g", "member_id": "m" * 22, "member_epoch": 1}, number, "etl")


def group_beat(number, api, interval):
    values = {"error_code": 0, "member_id": "m", "heartbeat_interval_ms": interval}
    return codec.encode_response(api, 0, values, number)


def commit(number, generation=1, member_id="m", partitions=0):
    topics = [{"name": "t", "partitions": [{"partition_index": index} for index in range(partitions)]}]
    values = {"group_id": "g", "generation_id_or_member_epoch": generation, "member_id": member_id, "topics": topics}
    return codec.encode_request(ApiKey.OFFSET_COMMIT, 8, values, number, "etl")


def committed(number, *errors, throttle_time_ms=0):
    """The answer to `commit`, with one partition for each error."""
    partitions = [{"partition_index": index, "error_code": error} for index, error in enumerate(errors)]
    values = {"throttle_time_ms": throttle_time_ms, "topics": [{"name": "t", "partitions": partitions}]}
    return codec.encode_response(ApiKey.OFFSET_COMMIT, 8, values, number)


def sync(number):
    return codec.encode_request(ApiKey.SYNC_GROUP, 5, {"group_id": "g", "generation_id": 1, "member_id": "m"}, number, "etl")


def synced(number, throttle_time_ms=0):
    return codec.encode_response(ApiKey.SYNC_GROUP, 5, {"throttle_time_ms": throttle_time_ms}, number)


def member(engine, session=45_000):
    """A connection that has joined a group, while the client had no debt."""
    t = Transcript(engine=engine)
    t.client_sends(join(0, session))
    t.broker_answers(joined(0))
    t.broker_got(join(0, session))
    t.client_got(joined(0))
    return t


@pytest.mark.parametrize(("session", "third"), [(45_000, 15_000), (10_000, 3_333), (6_000, 2_000), (1, 2_000)])
def test_member_is_muted_for_a_third_of_its_session(session, third):
    engine, bucket, amount = in_debt()
    t = member(engine, session)
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1), m.heartbeat(2))
    t.broker_answers(m.described(1, []))
    t.client_got(m.described(1, [], throttle_time_ms=third))
    t.broker_got(m.metadata(1))
    t.passes(third / 1000)
    t.broker_got(m.heartbeat(2))


def test_debt_of_a_spared_member_stays():
    engine, bucket, amount = in_debt()
    t = member(engine)
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.passes(15.0)
    assert not t.paused
    assert bucket.throttle_left(t.now) == pytest.approx(DEBT + 2 - 15)
    assert bucket.throttle_seconds_total == pytest.approx(DEBT + 1 + 15)
    assert t.counters.member_mutes == 1


@pytest.mark.parametrize(
    ("api", "interval", "cap"),
    [
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 5_000, 500),
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1_000, 500),
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 60_000, 500),
    ],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_group_protocol_heartbeat_bounds_the_mute(api, interval, cap):
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(group_heartbeat(0, api))
    t.broker_answers(group_beat(0, api, interval))
    t.client_got(group_beat(0, api, interval))
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(m.described(1, [], throttle_time_ms=cap))


def test_member_that_leaves_is_muted_for_the_whole_time():
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(group_heartbeat(0, ApiKey.CONSUMER_GROUP_HEARTBEAT))
    t.broker_answers(group_beat(0, ApiKey.CONSUMER_GROUP_HEARTBEAT, interval=0))
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(
        group_beat(0, ApiKey.CONSUMER_GROUP_HEARTBEAT, interval=0),
        m.described(1, [], throttle_time_ms=1_000 * int(DEBT + 2)),
    )


def test_heartbeat_of_another_connections_member_bounds_the_mute():
    """franz-go joins on one connection and sends heartbeats on another one."""
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(m.heartbeat(0))
    t.broker_answers(beat(0))
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(beat(0), m.described(1, [], throttle_time_ms=2_000))


def test_accepted_join_shortens_its_own_mute():
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(0))
    t.broker_answers(m.described(0, []))
    bucket.charge(amount, START)
    t.client_sends(join(1))
    t.passes(30.0)
    t.broker_answers(joined(1))
    t.client_got(m.described(0, []), joined(1, throttle_time_ms=15_000))


@pytest.mark.parametrize("error", [22, 25, 30])
def test_refused_heartbeat_spares_nobody(error):
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(m.heartbeat(0))
    t.broker_answers(beat(0, error=error))
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(beat(0, error=error), m.described(1, [], throttle_time_ms=102_000))


def test_members_heartbeats_cost_nothing_once_a_second():
    t = member(QuotaEngine(settings(request_rate=100.0), START))
    before = t.row("request_rate").amount_total
    for number in range(1, 21):
        t.client_sends(m.heartbeat(number))
        t.broker_answers(beat(number))
        t.passes(0.25)
    assert t.row("request_rate").amount_total - before == 15


def test_bytes_of_a_member_mute_for_their_whole_time():
    engine, bucket, amount = in_debt(producer_byte_rate=10.0)
    t = member(engine)
    bucket.charge(amount, START)
    t.client_sends(m.produce(1, size=1_100))
    assert t.core.throttle.until - START == pytest.approx(100.0)
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=100_000))


def test_accepted_member_waits_for_its_bytes():
    """The answer that proves the membership arrives during a mute for bytes and for requests."""
    engine, _, _ = in_debt(producer_byte_rate=10.0)
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(0))
    t.broker_answers(m.described(0, []))
    t.client_sends(join(1))
    t.client_sends(m.produce(2, size=400))
    assert t.core.throttle.until - START == pytest.approx(30.0)
    t.broker_answers(joined(1), m.produced(2))
    t.client_got(m.described(0, []), joined(1, throttle_time_ms=30_000), m.produced(2, throttle_time_ms=30_000))


def test_rate_of_one_api_spares_members_as_well():
    engine, bucket, amount = in_debt("request_rates.Metadata")
    t = member(engine)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    bucket.charge(amount, START)
    t.client_sends(m.metadata(2))
    t.broker_answers(m.described(2, []))
    t.client_got(m.described(1, []), m.described(2, [], throttle_time_ms=15_000))


@pytest.mark.parametrize(("session", "third"), [(45_000, 15.0), (6_000, 2.0)])
def test_members_first_request_of_an_api_waits_for_a_third(session, third):
    """Heartbeats wait behind it, however long the debt is that other connections have made."""
    engine, bucket, amount = in_debt("request_rates.Metadata")
    t = member(engine, session)
    bucket.charge(amount, START)
    t.client_sends(m.metadata(1), m.heartbeat(2))
    t.passes(third - 0.1)
    t.broker_got()
    t.passes(0.1)
    t.broker_got(m.metadata(1))
    assert bucket.amount_total == amount + 1
    t.broker_answers(m.described(1, []))
    t.passes(1.0)
    t.broker_got(m.heartbeat(2))


def test_join_lets_the_request_behind_it_in():
    """The request began to wait before the coordinator had accepted the member."""
    engine, bucket, amount = in_debt("request_rates.Metadata")
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(join(0), m.metadata(1))
    t.passes(5.0)
    t.broker_answers(joined(0))
    t.passes(15.0)
    t.broker_got(join(0))
    t.passes(1.0)
    t.broker_got(m.metadata(1))


def test_answers_of_unlimited_clients_pass_unread():
    t = Transcript(settings(request_rate=1.0))
    t.client_sends(codec.encode_request(ApiKey.HEARTBEAT, 4, {"group_id": "g"}, 0, "other"))
    assert t.core.in_flight[0].special is None


def test_returning_members_pass_in_spite_of_a_debt():
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    returning = [Transcript(engine=engine) for _ in range(5)]
    for number, t in enumerate(returning):
        t.client_sends(m.heartbeat(number))
    assert [bool(t.broker_inbox) for t in returning] == [True, False, False, False, False]
    for t in returning:
        t.passes(0.4)
    assert all(t.broker_inbox for t in returning)
    assert bucket.amount_total == amount + 5


@pytest.mark.parametrize(("user", "passes"), [("alice", False), ("bob", True)])
def test_members_of_one_user_delay_no_other_users(user, passes):
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    for number in range(301):
        t = Transcript(engine=engine)
        t.core.client.identify("alice" if number < 300 else user, START)
        t.client_sends(m.heartbeat(number))
    assert bool(t.broker_inbox) is passes
    t.passes(29.5)
    assert bool(t.broker_inbox) is passes
    t.passes(0.5)
    assert t.broker_inbox


@pytest.mark.parametrize(("request_of", "passed"), [(m.heartbeat, 4), (m.metadata, 0)])
def test_early_turns_of_closed_members_are_for_members(request_of, passed):
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    returning = [Transcript(engine=engine) for _ in range(5)]
    for number, t in enumerate(returning):
        t.client_sends(m.heartbeat(number))
    for t in returning:
        t.core.close(START)
    later = [Transcript(engine=engine) for _ in range(6)]
    for number, t in enumerate(later):
        t.client_sends(request_of(number))
        t.passes(0.4)
    assert sum(bool(t.broker_inbox) for t in later) == passed


def test_returning_members_commit_shortens_its_mute():
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(commit(1), m.heartbeat(2))
    t.broker_answers(committed(1, 3, 0))
    t.broker_got(commit(1))
    t.client_got(committed(1, 3, 0, throttle_time_ms=500))
    t.passes(0.5)
    t.broker_got(m.heartbeat(2))


def test_returning_members_sync_shortens_its_mute():
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(sync(1))
    t.broker_answers(synced(1))
    t.client_got(synced(1, throttle_time_ms=2_000))


@pytest.mark.parametrize("errors", [(), (3,), (22,), (25,), (27,), (82,), (110,)])
def test_commit_without_a_taken_partition_spares_nobody(errors):
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(commit(1))
    t.broker_answers(committed(1, *errors))
    t.client_got(committed(1, *errors, throttle_time_ms=101_000))


@pytest.mark.parametrize(("generation", "member_id"), [(-1, ""), (-1, "m"), (1, "")])
def test_commit_that_names_no_member_spares_nobody(generation, member_id):
    """Any client that may read a group without members can commit in it."""
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(commit(1, generation, member_id))
    t.broker_answers(committed(1, 0))
    t.client_got(committed(1, 0, throttle_time_ms=101_000))


@pytest.mark.parametrize(("partitions", "throttle_time_ms"), [(1_800, 500), (1_900, 101_000)])
def test_commit_above_32_kib_spares_nobody(partitions, throttle_time_ms):
    """Weir forwards the long answer unread."""
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(commit(1, partitions=partitions))
    t.broker_answers(committed(1, *[0] * partitions))
    t.client_got(committed(1, *[0] * partitions, throttle_time_ms=throttle_time_ms))


def test_commit_does_not_stand_for_a_heartbeat():
    """In groups of KIP-848, a commit does not begin the session timeout anew."""
    engine, bucket, amount = in_debt()
    t = member(engine)
    bucket.charge(amount, START)
    t.passes(20.0)
    t.client_sends(commit(1))
    t.broker_answers(committed(1, 0))
    t.client_got(committed(1, 0, throttle_time_ms=1_000))


def test_other_first_requests_wait_for_the_debt():
    engine, bucket, amount = in_debt()
    bucket.charge(amount, START)
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(0))
    assert t.core.throttle.until - START == pytest.approx(DEBT)
    t.broker_got()
