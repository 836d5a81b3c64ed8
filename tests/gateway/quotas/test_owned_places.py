"""One owner of many client-ids takes no places that others need, and gains no quota by further names."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ANONYMOUS, DEFAULT, MAX_NAME, ClientQuotaEntity, EntityQuota, Resolution, Tags
from gateway.quotas.owned_places import OWNER_FACTOR, OwnedPlaces, owner_of
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows

START = 1_000.0
KIND = "controller_mutation"
RATE = 10.0
BURST = 110  # KIP-599: all samples of the window
ATTACK = 10_000  # partitions of one request
EVERYONE = EntityQuota(ClientQuotaEntity(DEFAULT, DEFAULT), {"controller_mutation_rate": RATE})
QUOTA = Resolution(Tags(ANONYMOUS, "x"), RATE, EVERYONE.entity)
HOSTILE, HONEST = "10.0.0.1", "10.0.0.2"


def engine(places, *quotas, **options):
    return QuotaEngine(QuotaSettings(quotas or (EVERYONE,)), START, max_buckets=places, **options)


def connect(subject, name, ip=HOSTILE, *, user=ANONYMOUS, now=START, renamed=False):
    return subject.acquire_path(KIND, user, name, now, ip, renamed=renamed)[0]


def visit(subject, name, ip=HOSTILE, *, now=START, amount=ATTACK, **options):
    """Let a client connect, use so many partitions and leave."""
    bucket = connect(subject, name, ip, now=now, **options)
    bucket.record(amount, now)
    subject.release(bucket, now)
    return bucket


def attacked(places, **options):
    """An engine, and the buckets of one owner that has run into debt under half as many names again as there are places."""
    subject = engine(places, **options)
    buckets = [visit(subject, f"made-up-{number}", HOSTILE) for number in range(places + places // 2)]
    return subject, buckets


def shared(bucket):
    return bucket.resolution.tags.overflow


@pytest.mark.parametrize(
    ("user", "ip", "owner"),
    [
        ("alice", "10.0.0.1", "user=alice"),
        ("10.0.0.1", "", "user=10.0.0.1"),
        (ANONYMOUS, "10.0.0.1", "10.0.0.1"),
        ("", "10.0.0.1", "10.0.0.1"),
        (ANONYMOUS, "2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        (ANONYMOUS, "2001:db8:0:1::", "2001:db8:0:1::/64"),
        (ANONYMOUS, "2001:db8:0:2::5", "2001:db8:0:2::/64"),
        (ANONYMOUS, "fe80::1%eth0", "fe80::/64"),
        (ANONYMOUS, "::1", "::/64"),
        (ANONYMOUS, "", ""),
    ],
)
def test_owner_is_the_user_or_the_address(user, ip, owner):
    assert owner_of(user, ip) == owner


def test_long_user_is_a_short_owner():
    assert len(owner_of("u" * 30_000)) < MAX_NAME
    assert owner_of("u" * 30_000) != owner_of("u" * 30_001)


def filled(places, owners):
    """The places of each of these owners, once they have taken in turn all that they can."""
    subject, counts = OwnedPlaces(), dict.fromkeys(owners, 0)
    for _ in range(places):
        for owner in owners:
            _, taker = subject.place(owner, QUOTA, {}, places, renamed=False)
            counts[owner] += taker == owner
    return list(counts.values())


@pytest.mark.parametrize(
    ("places", "owners", "counts"),
    [
        (1, "a", [1]),
        (3, "a", [3]),
        (4, "a", [3]),
        (10_000, "a", [7_500]),
        (10_000, "ab", [4_286, 4_286]),
        (10_000, "abcdefghij", [968] * 8 + [967] * 2),
        (2, "abc", [1, 1, 0]),
    ],
)
def test_owners_leave_free_places(places, owners, counts):
    assert filled(places, owners) == counts


def test_places_come_back():
    subject = OwnedPlaces()
    for _ in range(3):
        subject.place("a", QUOTA, {}, 4, renamed=False)
    assert not subject.has_room("a", 3, 4, renamed=False)
    subject.give_back("a")
    assert subject.has_room("a", 2, 4, renamed=False)
    subject.give_back("a")
    subject.give_back("a")
    assert subject.taken == 0


def test_renamed_connection_gets_half_of_the_places():
    subject = OwnedPlaces()
    assert [subject.has_room("a", taken, 10, renamed=True) for taken in (4, 5)] == [True, False]


# The attack: a client creates buckets in debt under names that it makes up.


@pytest.mark.parametrize(("places", "own"), [(4, 3), (500, 375), (10_000, 7_500)])
def test_newcomer_of_another_owner_gets_its_full_quota(places, own):
    subject, buckets = attacked(places)
    assert sum(not shared(bucket) for bucket in buckets) == own
    for name in ("honest-1", "honest-2")[: places - own]:
        newcomer = connect(subject, name, HONEST)
        assert newcomer.resolution.tags == Tags(ANONYMOUS, name)
        assert newcomer.meter.tokens(START) == BURST
        assert newcomer.admit(START) == (0.0, False)


def test_owner_of_many_names_shares_its_own_debt():
    subject, buckets = attacked(500)
    further = {bucket for bucket in buckets if shared(bucket)}
    assert further == {connect(subject, "one more")}
    (bucket,) = further
    assert bucket.resolution.tags.owner == HOSTILE
    assert bucket.admit(START) == (3_600.0, True)


def test_authenticated_user_is_one_owner_at_all_addresses():
    subject = engine(8)
    buckets = [visit(subject, f"{number}", f"10.0.1.{number}", user="mallory") for number in range(12)]
    assert [shared(bucket) for bucket in buckets] == [False] * 6 + [True] * 6
    assert len(set(buckets[6:])) == 1
    assert not shared(connect(subject, "x", "10.0.1.1", user="alice"))


def test_hosts_of_one_ipv6_network_are_one_owner():
    subject = engine(8)
    buckets = [visit(subject, f"{number}", f"2001:db8::{number}") for number in range(12)]
    assert len(set(buckets[6:])) == 1
    assert not shared(connect(subject, "x", "2001:db8:1::1"))


def test_owner_leaves_its_shared_bucket_once_its_debts_end():
    subject, _ = attacked(8)
    late = connect(subject, "late")
    assert not subject.has_room(late, HOSTILE, renamed=False)
    for second in range(4_000):
        subject.tick(START + second)
    assert subject.has_room(late, HOSTILE, renamed=False)
    assert not shared(connect(subject, "late", now=START + 4_000.0))


def test_shadow_limits_have_places_by_owner_as_well():
    quota = EntityQuota(ClientQuotaEntity(DEFAULT, DEFAULT), shadow={"producer_byte_rate": 1_000.0})
    subject = EngineWithShadows(QuotaSettings((quota,)), START, max_buckets=8)

    def shadow(name, ip):
        return subject.acquire_path("produce", ANONYMOUS, name, START, ip)[-1]

    hostile = [shadow(f"{number}", HOSTILE) for number in range(12)]
    assert [shared(bucket) for bucket in hostile] == [False] * 6 + [True] * 6
    assert not subject.has_room(hostile[-1], HOSTILE, renamed=False)
    assert subject.has_room(hostile[-1], HONEST, renamed=False)
    assert not shared(shadow("honest", HONEST))


# Buckets without an owner, and further owners.


def test_names_from_peers_take_no_places_of_clients():
    """A client may run into debt at one gateway, and its peers hear of all these names."""
    subject = engine(8, shared=True)
    accounts = [subject.peer_account(KIND, Tags(ANONYMOUS, f"made-up-{number}"), START) for number in range(12)]
    assert [account is not None for account in accounts] == [True] * 8 + [False] * 4
    buckets = [connect(subject, f"mine-{number}") for number in range(7)]
    assert [shared(bucket) for bucket in buckets] == [False] * 6 + [True]
    assert connect(subject, "made-up-1") is accounts[1]
    assert not shared(connect(subject, "honest", HONEST))


def test_owners_without_places_have_their_own_shared_buckets():
    """Up to as many as there are places. Owners beyond them share one."""
    subject = engine(3)
    for number in range(3):
        visit(subject, "own", f"10.0.1.{number}", user=f"user-{number}")
    buckets = [connect(subject, "own", HONEST, user=f"late-{number}") for number in range(6)]
    assert [bucket.resolution.tags.owner for bucket in buckets] == ["user=late-0", "user=late-1", "user=late-2", "", "", ""]
    assert len(set(buckets)) == 4
    assert connect(subject, "other", HONEST, user="late-1") is buckets[1]


def test_entity_by_name_needs_no_bucket_of_an_owner():
    """The shared bucket of its level is for this entity alone."""
    etl = EntityQuota(ClientQuotaEntity(None, "etl"), {"controller_mutation_rate": 5.0})
    subject = engine(1, etl)
    connect(subject, "first")
    one, other = (connect(subject, "etl", ip) for ip in (HOSTILE, HONEST))
    assert one is other
    assert (one.resolution.limit, one.resolution.tags.owner) == (5.0, "")


def test_changed_quota_reaches_the_shared_buckets_of_owners():
    subject, buckets = attacked(4)
    subject.apply(QuotaSettings((replace(EVERYONE, limits={"controller_mutation_rate": 20.0}),)), START)
    assert buckets[-1].resolution.limit == 20.0
    assert connect(subject, "one more") is buckets[-1]


def test_late_charge_reaches_the_owners_shared_bucket():
    """A request under way holds a bucket that the engine has dropped."""
    subject, buckets = attacked(4)
    dropped = buckets[-1]
    for now in (START, START + 8_000.0):
        subject.tick(now)
    visit(subject, "honest", HONEST, now=START + 8_000.0, amount=0)
    dropped.record(50, START + 8_000.0)
    assert [bucket.amount_total for bucket in subject.buckets() if bucket.resolution.tags.owner == HOSTILE] == [50]


def test_late_charge_of_a_dropped_bucket_has_its_owner():
    subject = engine(4)
    dropped = visit(subject, "a", amount=0)
    subject.tick(START + 8_000.0)
    dropped.record(50, START + 8_000.0)
    (bucket,) = subject.buckets()
    assert (bucket.owner, bucket.amount_total) == (HOSTILE, 50)


def test_changed_scope_gives_places_back():
    subject = engine(4, replace(EVERYONE, limits={"producer_byte_rate": 1_000.0}))
    for number in range(3):
        subject.acquire_path("produce", ANONYMOUS, f"{number}", START, HOSTILE)
    subject.apply(replace(subject.settings, by_broker=True), START)
    buckets = [subject.acquire_path("produce", ANONYMOUS, f"{number}", START, HOSTILE)[0] for number in range(4)]
    assert [shared(bucket) for bucket in buckets] == [False] * 3 + [True]


visits = st.tuples(
    st.sampled_from(["a", "b", "c"]),  # the owner
    st.integers(0, 20),  # the client-id
    st.booleans(),  # renamed
    st.sampled_from([0, 50, ATTACK]),
    st.sampled_from([0.0, 1.0, 30.0, 4_000.0]),  # seconds until then
)


@given(places=st.integers(1, 12), steps=st.lists(visits, max_size=60))
def test_no_owner_escapes_a_debt_by_further_names(places, steps):
    """A name without a place has a bucket of its owner, and a bucket in debt stays. The number of buckets is bounded."""
    subject, now = engine(places), START
    debts = {}  # by tags: the bucket and the end of its debt
    for user, number, renamed, amount, seconds in steps:
        now += seconds
        subject.tick(now)
        bucket = visit(subject, f"{number}", user=user, now=now, renamed=renamed, amount=amount)
        tags = bucket.resolution.tags
        if shared(bucket):
            assert tags.owner in (f"user={user}", "")
        before, until = debts.get(tags, (bucket, now))
        assert before is bucket or until <= now
        debts[tags] = bucket, now + bucket.meter.delay(now)
        own = [each for each in subject.buckets() if not shared(each)]
        assert len(own) <= places
        assert len(list(subject.buckets())) <= 2 * places + 1
        taken = [sum(each.owner == f"user={user}" for each in own) for user in "abc"]
        assert sum(taken) == len(own)
        assert max(taken) <= ceil(places * OWNER_FACTOR / (OWNER_FACTOR + 1))
