from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import Window
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import Metering, QuotaSettings
from gateway.quotas.shared_meter import Part
from gateway.quotas.snapshot import EPISODE_QUIET_SECONDS, MAX_ADDRESSES, THROTTLE_BOUNDS
from gateway.quotas.usage_rows import usage_row
from tests.gateway.quotas.engines import bucket_of, rows_of

START = 5_000.0
WITHIN = (0.0, False)
ALGORITHMS = ["token_bucket", "window"]


def settings(*limits, exempt=(), **rest):
    """`limits`: (user, client-id, bytes per second) for all kinds."""
    quotas = [
        EntityQuota(ClientQuotaEntity(user, client), {kind.config_key: limit for kind in KINDS.values()})
        for user, client, limit in limits
    ]
    quotas += [EntityQuota(ClientQuotaEntity(*entity), exempt=True) for entity in exempt]
    return QuotaSettings(tuple(quotas), **rest)


ALICE_1000 = settings(("alice", None, 1_000.0))


def engine(of=ALICE_1000, **bounds):
    return QuotaEngine(of, START, **bounds)


def rows(subject, now):
    return {(row.kind, row.user, row.client_id): row for row in rows_of(subject, now)}


def ticks(subject, first, last):
    """Tick once per second, from `first` to `last` seconds after the start."""
    for second in range(first, last + 1):
        subject.tick(START + second)


def test_memory_is_the_longest_window_of_all_kinds():
    long = {"controller_mutation": Metering("token_bucket", Window(11, 60.0))}
    assert engine(settings(metering=long)).memory == 660.0


# Episodes.


def test_episode_begins_with_first_throttle_and_outlasts_pauses():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    assert bucket.episode.seconds(START) is None
    bucket.charge(20_000, START)
    throttled_until = START + bucket.throttle_left(START)
    assert bucket.episode.seconds(START + 2.0) == 2.0
    pause_ends = throttled_until + EPISODE_QUIET_SECONDS
    bucket.charge(20_000, pause_ends)
    assert bucket.episode.seconds(pause_ends) == pause_ends - START


def test_episode_ends_after_quiet_time_and_forgets_addresses():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(20_000, START)
    bucket.episode.note_address("10.0.0.1")
    over = START + bucket.throttle_left(START) + EPISODE_QUIET_SECONDS
    assert rows(subject, over)["produce", "alice", ""].throttled_seconds == over - START
    assert rows(subject, over)["produce", "alice", ""].unthrottled_seconds == EPISODE_QUIET_SECONDS
    ended = rows(subject, over + 1.0)["produce", "alice", ""]
    assert (ended.throttled_seconds, ended.unthrottled_seconds) == (None, None)
    bucket.charge(20_000, over + 1.0)
    assert (bucket.episode.seconds(over + 2.0), list(bucket.episode.addresses)) == (1.0, [])


def test_latest_addresses_are_kept():
    bucket = bucket_of(engine(), "produce", "alice", "etl", START)
    for number in (*range(MAX_ADDRESSES + 2), 5):
        bucket.episode.note_address(f"10.0.0.{number}")
    shown = usage_row(bucket, START).addresses
    assert (len(shown), shown[0], shown[-1]) == (MAX_ADDRESSES, "10.0.0.2", "10.0.0.5")


# Shared buckets.


def test_clients_of_same_tags_share_a_bucket():
    subject = engine()
    one, two = (bucket_of(subject, "produce", "alice", client, START) for client in ("etl", "app"))
    assert one is two
    assert one.connections == 2
    assert bucket_of(subject, "fetch", "alice", "etl", START) is not one
    subject.release(one, START)
    subject.release(one, START)
    with pytest.raises(ValueError, match="released more often"):
        subject.release(one, START)


def test_client_without_quota_is_measured_and_never_throttled():
    subject = engine(settings())
    bucket = bucket_of(subject, "produce", "bob", "etl", START)
    assert [bucket.charge(10**12, START), bucket.admit(START), bucket.throttle_left(START)] == [WITHIN, WITHIN, 0.0]
    assert bucket.fetch_allowance(0, START) is None
    row = rows(subject, START)["produce", "", "etl"]
    assert (row.amount_total, row.limit, row.used_ratio, row.tokens, row.level) == (10**12, None, 0.0, None, "")


def test_exempt_client_shows_its_exemption():
    subject = engine(settings((DEFAULT, None, 1.0), exempt=[(None, "mirror")]))
    bucket = bucket_of(subject, "produce", "bob", "mirror", START)
    assert bucket.charge(10**9, START) == WITHIN
    assert rows(subject, START)["produce", "", "mirror"].level == "client-id=mirror (exempt)"


# One bucket.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_client_over_quota_is_throttled_and_counted(algorithm):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    assert bucket.charge(10_000, START) == WITHIN
    assert bucket.charge(500, START) == (pytest.approx(0.5), True)
    row = rows(subject, START)["produce", "alice", ""]
    assert (row.amount_total, row.throttled_total, row.throttle_seconds_total) == (10_500, 1, pytest.approx(0.5))
    assert (row.level, row.limit, row.throttle_left) == ("user=alice", 1_000.0, pytest.approx(0.5))
    assert row.tokens == (-500.0 if algorithm == "token_bucket" else None)


@pytest.mark.parametrize(
    ("over", "wait"),
    [(0, 0.0), (-1, 0.0), (0.4, 0.0), (0.5, 0.0005), (100, 0.1)],
)
def test_fetch_is_refused_if_wait_is_a_millisecond_or_more(over, wait):
    subject = engine()
    bucket = bucket_of(subject, "fetch", "alice", "etl", START)
    bucket.meter.charge(10_000 + over, START)
    assert bucket.admit(START) == (pytest.approx(wait), wait > 0.0)
    assert bucket.throttled_total == (1 if wait else 0)
    assert bucket.amount_total == 0


@pytest.mark.parametrize(
    ("used", "batch_bytes", "allowance"),
    [
        (0, 0, 10_000),
        (4_000, 0, 6_000),
        (4_000, 2_500, 5_000),  # a whole number of batches
        (4_000, 7_000, 1),  # less than one batch: the broker sends the first batch whole
        (10_000, 0, 50),
        (10_000, 20, 40),
        (9_000, 1_000, 1_000),
    ],
)
def test_fetch_allowance_follows_balance_and_batch(used, batch_bytes, allowance):
    subject = engine()
    bucket = bucket_of(subject, "fetch", "alice", "etl", START)
    bucket.charge(used, START)
    assert bucket.fetch_allowance(batch_bytes, START) == allowance
    subject.apply(replace(ALICE_1000, enforce=False), START)
    assert bucket.fetch_allowance(batch_bytes, START) is None


@pytest.mark.parametrize("delay", [*THROTTLE_BOUNDS, 0.0007, 700.0])
def test_throttle_decisions_fill_a_histogram(delay):
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.meter.charge(10_000, START)
    bucket.charge(round(delay * 1000), START)
    totals = {total.kind: total for total in subject.throttle_totals()}
    held = round(delay * 1000) / 1000
    expected = [0] * (len(THROTTLE_BOUNDS) + 1)
    expected[sum(bound < held for bound in THROTTLE_BOUNDS)] += 1
    assert totals["produce"].counts == tuple(expected)
    assert totals["produce"].seconds == pytest.approx(held)
    assert (sum(totals["fetch"].counts), totals["fetch"].seconds) == (0, 0.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unenforced_throttles_count_as_if_clients_waited(algorithm):
    subject = engine(replace(ALICE_1000, algorithm=algorithm, enforce=False))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    assert bucket.charge(10_000, START) == WITHIN
    for _ in range(4):  # each exceeds the quota by half a second; no client waits, so no debt accumulates
        assert (bucket.charge(500, START), bucket.admit(START), bucket.throttle_left(START)) == ((0.5, False), WITHIN, 0.0)
    row = rows(subject, START)["produce", "alice", ""]
    assert (row.throttled_total, row.unenforced_total, row.throttle_seconds_total) == (4, 4, pytest.approx(2.0))
    assert (row.throttled_seconds, row.unthrottled_seconds) == (0.0, None)
    assert (row.amount_total, row.rate, row.used_ratio) == (12_000, 1_200.0, 1.2)  # the real use


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_enforcement_starts_without_debt_or_burst(algorithm):
    subject = engine(replace(ALICE_1000, algorithm=algorithm, enforce=False))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(1_000_000, START)
    subject.apply(replace(ALICE_1000, algorithm=algorithm), START)
    assert bucket.charge(100, START) == (pytest.approx(0.1), True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_enforcement_starts_without_debts_by_peers(algorithm):
    subject = engine(replace(ALICE_1000, algorithm=algorithm, enforce=False), shared=True)
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(100, START)
    for _ in range(3):
        bucket.charge_others(10_000, START, no_debt=False)
    assert bucket.meter.delay(START) > 10.0
    subject.apply(replace(ALICE_1000, algorithm=algorithm), START)
    assert bucket.charge(100, START) == (pytest.approx(0.1), True)


def test_reload_of_enforced_quotas_keeps_debts():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(15_000, START)
    subject.apply(ALICE_1000, START)
    assert bucket.throttle_left(START) == 5.0


# Changes under live traffic.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("limit", "delay"), [(2_000.0, 0.0), (500.0, 21.0), (1_000.0, 5.5)])
def test_changed_limit_keeps_use(algorithm, limit, delay):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(15_000, START)
    subject.apply(settings(("alice", None, limit), algorithm=algorithm), START)
    assert subject.generation == 1
    assert bucket_of(subject, "produce", "alice", "etl", START) is bucket
    if algorithm == "token_bucket":  # a debt of 5000 bytes, or the excess over the new limit's window
        delay = 5_500 / limit
    assert bucket.charge(500, START) == (pytest.approx(delay), delay > 0.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_first_limit_gives_neither_burst_nor_debt(algorithm):
    subject = engine(settings(algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(1_000_000, START)
    subject.apply(settings((None, "etl", 1_000.0), algorithm=algorithm), START)
    assert bucket.throttle_left(START) == 0.0
    assert bucket.charge(500, START) == (pytest.approx(0.5), True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_old_use_does_not_count_against_new_limit(algorithm):
    subject = engine(settings(algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(1_000_000, START)
    ticks(subject, 1, 20)
    subject.apply(settings((None, "etl", 1_000.0), algorithm=algorithm), START + 20)
    assert bucket.charge(10_000, START + 20) == WITHIN


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_client_with_new_tags_keeps_its_recent_use(algorithm):
    subject = engine(settings(algorithm=algorithm))
    old = bucket_of(subject, "produce", "alice", "etl", START)
    old.charge(9_000, START)
    subject.apply(settings(("alice", None, 1_000.0), algorithm=algorithm), START)
    new = bucket_of(subject, "produce", "alice", "etl", START, used=old.used_lately())
    assert new is not old
    assert new.resolution.tags == Tags("alice", None)
    assert new.charge(1_500, START) == (pytest.approx(0.5), True)


def test_removed_limit_throttles_nobody():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(50_000, START)
    subject.apply(settings(), START)
    assert (bucket.charge(50_000, START), bucket.throttle_left(START)) == (WITHIN, 0.0)
    assert rows(subject, START)["produce", "alice", ""].amount_total == 100_000


@pytest.mark.parametrize(("algorithm", "other"), [ALGORITHMS, ALGORITHMS[::-1]])
def test_changed_algorithm_keeps_recent_use_but_no_debt(algorithm, other):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(15_000, START)
    subject.apply(replace(ALICE_1000, algorithm=other), START)
    assert bucket.throttle_left(START) == 0.0
    assert bucket.charge(500, START) == (pytest.approx(0.5), True)


def test_changed_window_forgets_older_use():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(90_000, START)
    ticks(subject, 1, 200)
    bucket.charge(2_000, START + 200)
    subject.apply(replace(ALICE_1000, window=Window(21, 1.0)), START + 200)
    assert rows(subject, START + 200)["produce", "alice", ""].rate == 100.0
    assert bucket.meter.tokens(START + 200) == 18_000.0
    ticks(subject, 201, 222)
    assert rows(subject, START + 222)["produce", "alice", ""].rate == 0.0


# Rates.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_used_ratio_is_one_at_the_quota(algorithm):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    for second in range(1, 41):
        bucket.charge(1_000, START + second - 0.5)
        subject.tick(START + second)
    row = rows(subject, START + 40)["produce", "alice", ""]
    assert (row.rate, row.used_ratio) == (pytest.approx(1_000.0, rel=0.06), pytest.approx(1.0, rel=0.06))


def test_rate_falls_to_zero_after_its_window():
    subject = engine()
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(5_000, START)
    seen = []
    for second in range(1, 13):
        subject.tick(START + second)
        seen.append(rows(subject, START + second)["produce", "alice", ""].rate)
    assert seen == [500.0] * 10 + [0.0] * 2


def test_long_window_is_exact_with_few_marks():
    subject = engine(settings((None, "etl", 1_000.0), window=Window(10_000, 60)))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(600_000, START)
    ticks(subject, 1, 10_000)
    assert len(bucket.marks) == 121
    assert bucket.used_lately() == 600_000
    assert bucket.rate(START + 10_000) == pytest.approx(1.0, rel=0.02)


def test_each_kind_counts_over_its_own_window():
    metering = {"controller_mutation": Metering("token_bucket", Window(100, 1.0))}
    subject = engine(settings((None, "etl", 5.0), metering=metering))
    bytes_, partitions = (bucket_of(subject, kind, "alice", "etl", START) for kind in ("produce", "controller_mutation"))
    for bucket in (bytes_, partitions):
        bucket.charge(300, START)
    ticks(subject, 1, 50)
    assert (bytes_.used_lately(), partitions.used_lately()) == (0, 300)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("samples", [5, 12, 100, 1_000])
def test_changed_window_keeps_recent_use(algorithm, samples):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    for second in range(1, 9):
        bucket.charge(1_000, START + second)
        subject.tick(START + second)
    subject.apply(replace(ALICE_1000, algorithm=algorithm, window=Window(samples, 1.0)), START + 8)
    assert bucket.used_lately() == (4_000 if samples == 5 else 8_000)
    assert bucket.throttle_left(START + 8) == 0.0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["produce", "controller_mutation"])
@pytest.mark.parametrize("samples", [3, 12, 100])
def test_changed_window_keeps_debt(kind, samples, shared):
    subject = engine(shared=shared)
    bucket = bucket_of(subject, kind, "alice", "etl", START)
    bucket.charge(50_000, START)
    owed = bucket.throttle_left(START)
    subject.apply(replace(ALICE_1000, window=Window(samples, 1.0)), START)
    assert bucket.throttle_left(START) == owed > 0.0


def test_changed_window_keeps_presumed_use():
    subject = engine(shared=True)
    subject.meters.part = Part(0.5, 10.0)
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(1_000, START)
    subject.apply(replace(ALICE_1000, window=Window(21, 1.0)), START)
    assert bucket.meter.presumed == 1_000.0
    assert bucket.meter.tokens(START) == 18_000.0
    for _ in range(2):
        bucket.meter.settle(1.0, 0.0, START)
    assert bucket.meter.tokens(START) == 19_000.0


# Bounds.


def crowd(subject, count, first=0):
    return [bucket_of(subject, "produce", "u", f"client-{number}", START) for number in range(first, first + count)]


def test_clients_over_max_buckets_share_one_per_level():
    subject = engine(settings((None, DEFAULT, 1_000.0), ("alice", None, 7.0)), max_buckets=3)
    own = crowd(subject, 3)
    shared = crowd(subject, 5, first=3)
    assert len({id(bucket) for bucket in (*own, *shared)}) == 4
    assert subject.overflowed == 5
    assert shared[0].resolution.limit == 1_000.0
    assert bucket_of(subject, "produce", "alice", "x", START).resolution.limit == 7.0
    assert crowd(subject, 3) == own  # a client with a bucket keeps it
    assert bucket_of(subject, "fetch", "u", "client-4", START).resolution.tags == Tags(
        None, "client-4"
    )  # each kind counts separately


@pytest.mark.parametrize(
    ("changed", "limit"), [((None, DEFAULT, 500.0), 500.0), ((None, "client-0", 5.0), None)], ids=["changed", "taken away"]
)
def test_changed_quota_reaches_overflow_bucket(changed, limit):
    subject = engine(settings((None, DEFAULT, 1_000.0)), max_buckets=1)
    crowd(subject, 2)
    subject.apply(settings(changed), START)
    (shared,) = {id(bucket): bucket for bucket in crowd(subject, 1, first=5)}.values()
    assert shared.resolution.limit == limit
    assert (shared.meter is None) == (limit is None)
    if limit:
        assert shared.meter.capacity == 10 * limit
        subject.apply(settings(changed, exempt=[(None, DEFAULT)]), START)
        assert shared.meter is None


def test_client_cannot_enter_overflow_bucket_by_name():
    subject = engine(settings((DEFAULT, DEFAULT, 1_000.0)), max_buckets=2)
    level = "user=<default>, client-id=<default>"
    namesake = bucket_of(subject, "produce", "<other>", level, START)
    crowd(subject, 1)
    (shared,) = crowd(subject, 1, first=1)
    assert shared.resolution.tags == Tags("<other>", level, overflow=True, owner="user=u")
    assert shared is not namesake
    assert bucket_of(subject, "produce", "<other>", level, START) is namesake


@pytest.mark.parametrize("name", ["<other>", "\\<other>", "\\\\<other>"])
def test_client_cannot_pose_as_the_other_label(name):
    subject = engine(settings(), max_labelled=2)
    bucket_of(subject, "fetch", "u", name, START)
    bucket_of(subject, "fetch", "u", "another", START)
    bucket_of(subject, "fetch", "u", "one more", START)
    assert {row.client_id for row in rows_of(subject, START)} == {"\\" + name, "another", "<other>"}
    assert Tags(name, None).shown == ("\\" + name, "")


def test_labelled_buckets_are_bounded_and_rest_is_summed():
    subject = engine(settings(), max_labelled=2)
    for number, bucket in enumerate(crowd(subject, 5)):
        bucket.charge(10**number, START)
    shown = rows(subject, START)
    assert {name: row.amount_total for name, row in shown.items()} == {
        ("produce", "", "client-0"): 1,
        ("produce", "", "client-1"): 10,
        ("produce", "<other>", "<other>"): 11_100,
    }
    other = shown["produce", "<other>", "<other>"]
    assert (other.connections, other.limit, other.rate) == (3, None, 1_110.0)


def test_shown_rows_have_distinct_names():
    subject = engine(settings(), max_buckets=2, max_labelled=10)
    crowd(subject, 6)
    names = [(row.kind, row.user, row.client_id) for row in rows_of(subject, START)]
    assert len(names) == len(set(names)) == 3


def test_dropped_bucket_stays_in_the_unnamed_sum():
    subject = engine(settings(), max_labelled=0)
    for bucket in crowd(subject, 3):
        bucket.charge(100, START)
        bucket.note_early(0.5)
        subject.release(bucket, START)
    (other,) = rows_of(subject, START)
    assert (other.amount_total, other.early_total) == (300, 3)
    ticks(subject, 1, 1)
    subject.tick(START + 2 * BUCKET_IDLE_SECONDS)
    (other,) = rows_of(subject, START + 2 * BUCKET_IDLE_SECONDS)
    assert (other.client_id, other.amount_total, other.early_total, other.connections) == ("<other>", 300, 3, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("after", "connected", "dropped"),
    [
        (BUCKET_IDLE_SECONDS - 2, False, False),
        (BUCKET_IDLE_SECONDS + 2, False, True),
        (BUCKET_IDLE_SECONDS + 2, True, False),
    ],
)
def test_bucket_unused_for_an_hour_is_dropped(algorithm, after, connected, dropped):
    subject = engine(replace(ALICE_1000, algorithm=algorithm))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(100, START)
    if not connected:
        subject.release(bucket, START)
    subject.tick(START + 1)
    subject.tick(START + after)
    assert (("produce", "alice", "") not in rows(subject, START + after)) == dropped


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bucket_in_debt_is_never_dropped(algorithm):
    subject = engine(settings(("alice", None, 1.0), algorithm=algorithm, window=Window(2, 7_200)))
    bucket = bucket_of(subject, "produce", "alice", "etl", START)
    bucket.charge(10**6, START)
    subject.release(bucket, START)
    subject.tick(START + 1)
    subject.tick(START + BUCKET_IDLE_SECONDS + 10)
    assert bucket_of(subject, "produce", "alice", "etl", START + BUCKET_IDLE_SECONDS + 10) is bucket


def test_full_table_drops_idle_buckets_sooner():
    subject = engine(settings(), max_buckets=4)
    for user in "abcd":
        subject.release(bucket_of(subject, "produce", user, user, START), START)
    subject.tick(START + 2)
    crowd(subject, 3, first=4)
    assert subject.overflowed == 0


def test_bucket_charged_without_acquire_stays():
    subject = engine(settings())
    bucket = bucket_of(subject, "fetch", "alice", "etl", START)
    subject.release(bucket, START)
    for half_hour in range(1, 9):  # a response is charged after its client has changed its name
        bucket.charge(1, START + half_hour * 1800)
        subject.tick(START + half_hour * 1800)
    assert bucket_of(subject, "fetch", "alice", "etl", START + 9 * 1800) is bucket


NAMES = [None, "a", "b", DEFAULT]


@given(
    tables=st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(any),
            st.one_of(st.none(), st.sampled_from([100.0, 200.0])),  # None: exempt
            max_size=5,
        ),
        min_size=2,
        max_size=4,
    ),
    max_buckets=st.sampled_from([1, 3, 100]),
    by_api=st.booleans(),
    early=st.booleans(),
)
def test_change_reaches_every_affected_bucket(tables, max_buckets, by_api, early):
    """A change visits few buckets, and each bucket has the quota that a complete rebuild would give it.

    With `early`, all changes are prepared before the first is applied, so that most are for tables of the past.
    """

    file = (EntityQuota(ClientQuotaEntity("a", "b"), exempt=True), EntityQuota(ClientQuotaEntity("b"), {"other": 1.0}))

    def of(table):
        rates = {entity: limit for entity, limit in table.items() if limit is not None}
        if by_api:  # the file stays the same
            dynamic = {ClientQuotaEntity(*entity): {"producer_byte_rate": limit} for entity, limit in rates.items()}
            return QuotaSettings(file, dynamic)
        quotas = [EntityQuota(ClientQuotaEntity(*entity), {"producer_byte_rate": limit}) for entity, limit in rates.items()]
        quotas += [EntityQuota(ClientQuotaEntity(*entity), exempt=True) for entity in table.keys() - rates.keys()]
        return QuotaSettings(tuple(quotas))

    subject = engine(of(tables[0]), max_buckets=max_buckets)
    steps = [of(table) for table in tables]
    prepared = [subject.prepare(step) for step in steps]
    for table, step, changes in zip(tables, steps, prepared, strict=True):
        subject.apply(step, START, changes if early else subject.prepare(step))
        for user in ("a", "b", "c"):
            for client_id in ("a", "b", "c"):
                bucket_of(subject, "produce", user, client_id, START)
        whole = QuotaTable(of(table).quotas, of(table).dynamic)
        for bucket in subject.buckets():
            expected = whole.again("producer_byte_rate", bucket.resolution)
            assert (bucket.resolution.limit, bucket.resolution.exempt) == (expected.limit, expected.exempt)
            assert (bucket.meter is None) == (expected.limit is None)
