"""Members that share quotas over a topic that is a list."""

import pytest

from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.features.sharing.member import LAST_RECORDS, MIN_EXPIRY_SECONDS, SWEEP_SECONDS, TIMELY_RECORDS, Member
from gateway.features.sharing.peer_balances import NEW_MESSAGES
from gateway.features.sharing.shared_usage import FORGET_SECONDS, PIECE, reading_pause
from gateway.features.sharing.use_message import MAX_ENTITIES, MAX_MESSAGE_BYTES, MAX_NAME, EntityUse, UseMessage, encode, parse
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.meter import Window
from gateway.quotas.recent_use import PeerTotals
from gateway.quotas.settings import QuotaSettings
from loadtest.scenarios.sharing_simulation import Scenario, simulate
from tests.gateway.quotas.engines import bucket_of

LIMIT = 1_000.0
INTERVAL = 0.2
LAG = INTERVAL * LIMIT
"""The refill of one interval, which a full bucket misses before it hears of a peer's use."""

QUOTAS = (
    EntityQuota(
        ClientQuotaEntity(user="alice"),
        {"producer_byte_rate": LIMIT, "consumer_byte_rate": LIMIT, "controller_mutation_rate": 10.0},
    ),
    EntityQuota(ClientQuotaEntity(client_id=DEFAULT), {"producer_byte_rate": LIMIT}),
    EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 10.0}),
)

LONG_WINDOW = Window(11, 10.0)

JOBS = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": LIMIT})


class Fleet:
    """Gateways and the topic between them. Only the test uses quota."""

    def __init__(
        self,
        count: int,
        *,
        fair_share: bool = False,
        algorithm: str = "token_bucket",
        by_broker: frozenset[int] = frozenset(),
        window: Window | None = None,
    ) -> None:
        """`by_broker`: the gateways with `scope: broker`."""
        self.now = 100.0
        self.by_broker = by_broker
        self.algorithm = algorithm
        self.window = window or Window()
        self.fair_share = fair_share
        self.engines: dict[int, QuotaEngine] = {}
        self.members: dict[int, Member] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.down: set[int] = set()  # members that can't reach the topic
        for number in range(count):
            self.join(number)

    def join(self, number: int) -> None:
        settings = QuotaSettings(
            (*QUOTAS, JOBS.quota),
            algorithm=self.algorithm,
            window=self.window,
            groups=(JOBS,),
            by_broker=number in self.by_broker,
        )
        engine = QuotaEngine(settings, self.now, shared=True)
        self.engines[number] = engine
        self.members[number] = member = Member(f"{number + 1:016x}", engine, INTERVAL, self.now, fair_share=self.fair_share)
        for key, value in self.compacted():
            member.receive(key, value, self.now)

    def compacted(self) -> list[tuple[bytes, bytes | None]]:
        return list(dict(self.log).items())

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            records = []
            for number, member in self.members.items():
                published = member.step(self.now)
                if number not in self.down:
                    records += published
            self.log += records
            for record in records:
                for number, member in self.members.items():
                    if number not in self.down:
                        member.receive(*record, self.now)
            if round(self.now / INTERVAL) % 5 == 0:
                for engine in self.engines.values():
                    engine.tick(self.now)

    def bucket(self, number: int, kind: str = "produce") -> Bucket:
        bucket = bucket_of(self.engines[number], kind, "alice", "any", self.now)
        self.engines[number].release(bucket, self.now)
        return bucket

    def use(self, number: int, amount: int, kind: str = "produce") -> float:
        return self.bucket(number, kind).charge(amount, self.now)[0]

    def tokens(self, number: int, kind: str = "produce") -> float:
        bucket = self.bucket(number, kind)
        assert bucket.meter is not None
        tokens = bucket.meter.tokens(self.now)
        assert tokens is not None
        return tokens


def begun(count: int, *, fair_share: bool = False) -> Fleet:
    fleet = Fleet(count, fair_share=fair_share)
    fleet.run(1.0)
    assert all(member.status.members == count and member.status.reachable for member in fleet.members.values())
    return fleet


def settled(fleet: Fleet) -> float:
    """Run until all use is known and presumed use is returned. Returns the refill meanwhile."""
    fleet.run(1.0)
    return LIMIT


def test_use_of_one_member_is_charged_at_all() -> None:
    fleet = begun(3)
    fleet.use(0, 8_000)
    flowed = settled(fleet)
    full = round(2_000 + flowed)
    assert [round(fleet.tokens(number)) for number in range(3)] == [full, full - LAG, full - LAG]


def test_every_kind_is_shared() -> None:
    fleet = begun(2)
    for kind, amount in (("fetch", 8_000), ("controller_mutation", 90)):
        fleet.use(0, amount, kind)
    address = fleet.engines[0].acquire_ip("connection", "192.0.2.7", fleet.now)
    assert address is not None
    for _ in range(50):
        address.charge_connection(1.0, fleet.now)
    settled(fleet)
    assert round(fleet.tokens(1, "fetch")) == 3_000 - LAG
    assert round(fleet.tokens(1, "controller_mutation")) == 30 - 2
    there = fleet.engines[1].acquire_ip("connection", "192.0.2.7", fleet.now)
    assert there is not None
    assert there.meter is not None
    assert round(there.meter.tokens(fleet.now) or 0.0) == 60 - 2


def test_use_of_a_group_is_charged_at_all() -> None:
    fleet = begun(2)
    _, here = fleet.engines[0].acquire_path("produce", "bob", "job-1", fleet.now)
    here.charge(8_000, fleet.now)
    flowed = settled(fleet)
    _, there = fleet.engines[1].acquire_path("produce", "carol", "job-2", fleet.now)
    assert there.meter is not None
    assert round(there.meter.tokens(fleet.now) or 0.0) == round(2_000 + flowed - LAG)


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_another_algorithm_keeps_the_use_of_peers(algorithm: str) -> None:
    fleet = Fleet(2, algorithm=algorithm)
    fleet.run(1.0)
    fleet.use(0, 8_000)
    settled(fleet)
    another = "window" if algorithm == "token_bucket" else "token_bucket"
    fleet.engines[1].apply(QuotaSettings(QUOTAS, algorithm=another), fleet.now)
    meter = fleet.bucket(1).meter
    assert meter is not None
    assert meter.balance(fleet.now) <= meter.capacity - 7_000


def test_own_figures_exclude_peers() -> None:
    fleet = begun(2)
    fleet.use(0, 8_000)
    settled(fleet)
    assert (fleet.bucket(0).amount_total, fleet.bucket(1).amount_total) == (8_000, 0)


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_shown_rate_is_that_of_this_gateway(algorithm: str) -> None:
    """The sum over all gateways is the whole rate."""
    fleet = Fleet(2, algorithm=algorithm)
    for _ in range(20):
        for number in range(2):
            fleet.use(number, 500)
        fleet.run(1.0)
    assert [round(fleet.bucket(number).rate(fleet.now)) for number in range(2)] == [500, 500]


@pytest.mark.parametrize("length", [MAX_NAME, MAX_NAME + 1])
def test_long_name_is_shared_by_its_short_form(length: int) -> None:
    fleet = begun(2)
    there, here = (bucket_of(fleet.engines[number], "produce", "bob", "c" * length, fleet.now) for number in range(2))
    there.charge(8_000, fleet.now)
    fleet.use(0, 8_000)
    fleet.run(5.0)
    assert all((member.status.members, member.status.reachable) == (2, True) for member in fleet.members.values())
    assert not any(member.status.skipped for member in fleet.members.values())
    there.charge(8_000, fleet.now)
    fleet.use(0, 8_000)
    fleet.run(1.0)
    assert fleet.tokens(1) < 4_000
    assert here.meter is not None
    assert (here.meter.tokens(fleet.now) or 0.0) < 4_000


def test_members_that_send_at_once_spend_balance_once() -> None:
    fleet = begun(4)
    used = 0
    for number in range(4):
        while fleet.use(number, 100) == 0.0:
            used += 100
    assert used <= 10_000


def test_only_active_member_soon_gets_whole_quota() -> None:
    fleet = begun(4)
    fleet.use(0, 100)
    fleet.run(1.0)
    fleet.use(0, 100)
    assert round(fleet.tokens(0)) == 9_900


def test_repeated_record_counts_once() -> None:
    fleet = begun(2)
    fleet.use(0, 8_000)
    fleet.run(2 * INTERVAL)
    for record in fleet.log[-4:]:
        fleet.members[1].receive(*record, fleet.now)
    settled(fleet)
    assert round(fleet.tokens(1)) == round(2_000 + LIMIT + LAG)
    assert fleet.members[1].status.skipped["repeated"] == 2


def test_next_record_makes_up_for_a_lost_one() -> None:
    fleet = begun(2)
    fleet.down.add(1)
    fleet.use(0, 3_000)
    fleet.run(INTERVAL)
    fleet.down.clear()
    fleet.use(0, 3_000)
    settled(fleet)
    assert round(fleet.tokens(0)) == 4_000 + LIMIT + LAG
    assert round(fleet.tokens(1)) == 4_000 + LIMIT - LAG, "all use is known, two intervals late"


def test_new_member_counts_recent_use_only() -> None:
    fleet = begun(2)
    for _ in range(30):
        fleet.use(0, 1_000)
        fleet.run(1.0)
    fleet.use(0, 5_000)
    fleet.run(1.0)
    fleet.use(0, 1)
    fleet.join(7)
    fleet.run(1.2)
    assert 0 <= fleet.tokens(7) <= fleet.tokens(0), "the window is charged, without a debt"


def test_last_record_of_a_gone_member_counts_nothing() -> None:
    fleet = begun(2)
    fleet.use(0, 8_000)
    fleet.run(1.0)
    del fleet.members[0], fleet.engines[0], fleet.members[1], fleet.engines[1]
    fleet.now += 1_000.0
    fleet.join(2)
    fleet.run(1.0)
    assert round(fleet.tokens(2)) == 10_000
    assert fleet.members[2].status.members == 1


def test_first_messages_share_the_room_of_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with the right to write to the topic can invent members."""
    monkeypatch.setattr("gateway.features.sharing.known_peers.MAX_FLOWS", 3)
    member = Member("0" * 16, QuotaEngine(QuotaSettings(QUOTAS), 0.0), INTERVAL, 0.0)
    uses = tuple(EntityUse("produce", Tags("alice", f"{number}" * MAX_NAME), 5, 5) for number in range(2))
    unknown = EntityUse("of a later Weir", Tags("alice", None), 5, 5)
    for identity in (b"a" * 16, b"b" * 16):
        member.receive(identity, encode(UseMessage(1, (*uses, unknown))), 1.0)
    first, second = (member._peers.by_identity[each * 16] for each in "ab")
    assert (len(first.uses), len(second.uses)) == (2, 1)
    assert member.status.skipped == {"too_many_entities": 1}
    assert all(len(str(name)) < 1_000 for _, name in first.uses)
    member.receive(b"a" * 16, encode(UseMessage(2, ())), 1.2)
    assert (len(first.uses), len(first.flows)) == (0, 2)
    member.receive(b"a" * 16, None, 1.3)
    member.receive(b"b" * 16, None, 1.3)
    member.receive(b"c" * 16, encode(UseMessage(1, uses)), 1.4)
    assert len(member._peers.by_identity["c" * 16].uses) == 2


def test_client_ids_of_one_user_leave_room_for_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.features.sharing.known_peers.MAX_FLOWS", 100)
    member = Member("0" * 16, QuotaEngine(QuotaSettings(QUOTAS), 0.0), INTERVAL, 0.0)
    for sequence, user in ((1, "mallory"), (2, "mallory"), (3, "bob")):
        uses = tuple(EntityUse("produce", Tags(user, str(number)), 5, 5) for number in range(90 if user == "mallory" else 20))
        member.receive(b"a" * 16, encode(UseMessage(sequence, uses)), 1.0)
    names = [name.user for _, name in member._peers.by_identity["a" * 16].flows if isinstance(name, Tags)]
    assert (names.count("mallory"), names.count("bob")) == (75, 19)
    assert member.status.skipped == {"too_many_entities": 15 + 1}
    member.receive(b"a" * 16, None, 1.0)
    assert (member._peers.flows, member._peers._owned) == (0, {})


def test_silent_member_expires() -> None:
    fleet = begun(3)
    del fleet.members[2], fleet.engines[2]
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    assert fleet.members[0].status.members == 2


def test_tombstone_removes_member_at_once() -> None:
    fleet = begun(2)
    fleet.members[0].receive(*fleet.members[1].final_records(fleet.now)[1], fleet.now)
    del fleet.members[1]
    fleet.run(INTERVAL)
    assert fleet.members[0].status.members == 1


def test_restarted_gateway_is_a_new_member() -> None:
    fleet = begun(2)
    fleet.use(0, 4_000)
    settled(fleet)
    del fleet.members[0], fleet.engines[0]
    fleet.join(5)
    fleet.run(1.0)
    fleet.use(5, 2_000)
    settled(fleet)
    assert round(fleet.tokens(1)) == round(10_000 - 4_000 - 2_000 + 3 * LIMIT - LAG)


def test_use_after_a_refund_is_published() -> None:
    """Otherwise a client could take back what peers know of, and then use as much at each gateway."""
    fleet = begun(2)
    bucket = fleet.bucket(0, "controller_mutation")
    bucket.record(50, fleet.now)
    fleet.run(INTERVAL)
    bucket.record(-50, fleet.now)
    fleet.run(INTERVAL)
    bucket.record(50, fleet.now)
    fleet.run(1.0)
    total = max(use.total for key, value in fleet.log if value for use in parse(value).entities)
    assert total == 100


def test_held_presumption_of_a_quiet_client_is_returned() -> None:
    fleet = begun(2)
    fleet.use(0, 1_000)
    member, bucket = fleet.members[0], fleet.bucket(0)
    for number in range(20):  # a record is in flight for four seconds
        fleet.now += INTERVAL
        member.step(fleet.now, publish=False)
        member.handle(member.identity, UseMessage(100 + number, ()), fleet.now)
    assert (bucket.meter.presumed, round(bucket.meter.tokens(fleet.now))) == (1_000.0, 10_000)
    for _ in range(2):
        fleet.now += INTERVAL
        member.step(fleet.now)
    assert bucket.meter.presumed == 0.0


def test_members_without_topic_work_alone() -> None:
    fleet = begun(2)
    fleet.down |= {0, 1}
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    assert not fleet.members[0].status.reachable
    fleet.use(0, 1_000)
    assert (round(fleet.tokens(0)), round(fleet.tokens(1))) == (9_000, 10_000)


def test_last_known_members_count_while_unreachable() -> None:
    fleet = begun(3, fair_share=True)
    fleet.down |= {1, 2}
    fleet.run(2 * INTERVAL)
    fleet.down |= {0}
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    status = fleet.members[0].status
    assert (status.members, status.reachable) == (3, False)


def test_fair_share_without_topic_splits_quota() -> None:
    fleet = begun(2, fair_share=True)
    fleet.down |= {0, 1}
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    fleet.use(0, 2_000)
    fleet.run(1.0)
    assert (round(fleet.tokens(0)), round(fleet.tokens(1))) == (7_000, 10_000)


def test_first_member_alone_publishes_balances() -> None:
    """No two members follow each other. A balance above half of the burst is no matter."""
    fleet = begun(3)
    fleet.run(2 * NEW_MESSAGES * INTERVAL)
    for amount, published in ((3_000, False), (3_000, True)):
        fleet.use(2, amount)
        begin = len(fleet.log)
        fleet.run(2 * INTERVAL)
        said = {key for key, value in fleet.log[begin:] if value is not None and parse(value).balances}
        assert said == ({fleet.members[0].identity.encode()} if published else set())
    del fleet.members[0]
    fleet.run(MIN_EXPIRY_SECONDS + 2 * INTERVAL)
    fleet.use(2, 5_000)
    begin = len(fleet.log)
    fleet.run(2 * INTERVAL)
    assert {key for key, value in fleet.log[begin:] if value and parse(value).balances} == {fleet.members[1].identity.encode()}


def test_a_peer_that_follows_gets_no_credit() -> None:
    """The first member's balance lacks the newest use of the others."""
    fleet = begun(2)
    fleet.run(2 * NEW_MESSAGES * INTERVAL)
    fleet.use(1, 8_000)
    for _ in range(100):
        fleet.run(INTERVAL)
        fleet.use(1, round(LAG))
    meter = fleet.bucket(1).shared_meter()
    assert meter is not None
    assert meter.comparable(fleet.now) == pytest.approx(2_000 - LAG, abs=1), (
        "both members have the same balance, and the first one was full"
    )


def test_debt_stays_when_the_topic_is_back() -> None:
    """Presumed use may not exceed the longest debt: it is given back in full, and the excess would be credit."""
    fleet = begun(2, fair_share=True)
    fleet.down |= {0, 1}
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    fleet.use(0, 2_500 * round(LIMIT))
    fleet.down.clear()
    fleet.run(1.0)
    assert fleet.tokens(0) == pytest.approx(-2_489 * LIMIT)


def test_short_silence_keeps_shares() -> None:
    fleet = begun(4)
    for _ in range(10):
        for number in range(4):
            while fleet.use(number, 10) == 0.0:
                pass
        fleet.run(INTERVAL)
    fleet.down |= {0, 1, 2, 3}
    used, stall = 0, MIN_EXPIRY_SECONDS - 2 * INTERVAL
    for _ in range(round(stall / INTERVAL)):
        for number in range(4):
            while fleet.use(number, 10) == 0.0:
                used += 10
        fleet.run(INTERVAL)
    assert all(member.status.reachable for member in fleet.members.values())
    assert used <= 1.5 * LIMIT * stall

    alone, since = 0, 5 * INTERVAL
    for _ in range(round(since / INTERVAL)):
        for number in range(4):
            while fleet.use(number, 10) == 0.0:
                alone += 10
        fleet.run(INTERVAL)
    assert not any(member.status.reachable for member in fleet.members.values())
    assert alone <= 4 * LIMIT * (since + 2 * INTERVAL), "the whole quota from now on, and no charge for the time before"


def test_unpublished_use_goes_into_next_record() -> None:
    fleet = begun(2)
    fleet.use(0, 3_000)
    fleet.now += INTERVAL
    assert fleet.members[0].step(fleet.now) != []
    fleet.members[0].not_published()
    settled(fleet)
    assert round(fleet.tokens(1)) <= 7_000 + LIMIT


def test_only_one_record_is_in_flight() -> None:
    fleet = begun(2)
    fleet.use(0, 3_000)
    for _ in range(5):
        fleet.now += INTERVAL
        assert fleet.members[0].step(fleet.now, publish=False) == []
    settled(fleet)
    assert round(fleet.tokens(1)) <= 7_000 + LIMIT


def test_leaving_member_publishes_its_last_use() -> None:
    fleet = begun(2)
    fleet.use(0, 3_000)
    for record in fleet.members[0].final_records(fleet.now):
        fleet.members[1].receive(*record, fleet.now)
    del fleet.members[0]
    assert round(fleet.tokens(1)) == 7_000
    fleet.run(INTERVAL)
    assert fleet.members[1].status.members == 1


def test_changed_interval_applies_from_next_step() -> None:
    fleet = begun(1)
    member = fleet.members[0]
    member.configure(1.0, fair_share=True)
    assert (member.interval, member.expiry) == (1.0, 15.0)
    fleet.run(3.0)
    assert len(fleet.log) == 5 + 3


def test_slowest_living_member_sets_the_interval() -> None:
    fleet = begun(3)
    fleet.members[2].configure(1.0, fair_share=False)
    fleet.members[1].configure(0.5, fair_share=False)
    fleet.run(3.0)
    begin = len(fleet.log)
    fleet.run(5.0)
    assert len(fleet.log) - begin == 3 * 5
    assert [member.interval for member in fleet.members.values()] == [1.0, 1.0, 1.0]
    for record in fleet.members.pop(2).final_records(fleet.now):
        for member in fleet.members.values():
            member.receive(*record, fleet.now)
    fleet.run(2 * INTERVAL)
    assert [member.interval for member in fleet.members.values()] == [0.5, 0.5]
    del fleet.members[1]
    fleet.run(15 * 0.5 + 2 * INTERVAL)
    assert fleet.members[0].interval == INTERVAL


def test_silence_ends_without_debt_for_peers() -> None:
    fleet = begun(2)
    fleet.down |= {0, 1}
    for _ in range(30):
        fleet.use(0, 1_000)
        fleet.run(1.0)
    fleet.down.clear()
    fleet.run(1.0)
    assert all(member.status.reachable for member in fleet.members.values())
    assert fleet.tokens(1) >= 0.0


def test_second_message_after_a_silence_makes_no_debt() -> None:
    """A message has room for 500 entities. The rest of the use during the silence comes with the next ones."""
    fleet = begun(2)
    names = [f"c{number}" for number in range(MAX_ENTITIES + 1)]

    def use(amount: int) -> None:
        for name in names:
            bucket_of(fleet.engines[0], "produce", "user", name, fleet.now).charge(amount, fleet.now)

    use(100)
    fleet.run(2.0)
    fleet.down = {0}  # and its engine gives the whole quota meanwhile
    for _ in range(20):
        use(round(LIMIT))
        fleet.run(1.0)
    fleet.down = set()
    use(1)
    fleet.run(2.0)
    last = [fleet.engines[1].peer_account("produce", Tags(None, name), fleet.now) for name in names]
    assert all(bucket is not None and bucket.meter is not None and bucket.meter.delay(fleet.now) == 0.0 for bucket in last)


def test_small_uses_are_gathered_without_loss() -> None:
    fleet = begun(2)
    for _ in range(10):
        fleet.use(0, 3)
        fleet.run(INTERVAL)
    fleet.run(1.0)
    rows = [use for key, value in fleet.log if value for use in parse(value).entities]
    assert len(rows) <= 4
    assert rows[-1].total == 30


def test_kinds_of_later_versions_are_ignored() -> None:
    fleet = begun(1)
    for sequence in (1, 2):
        message = UseMessage(sequence, (EntityUse("later", "a", 1, 1), EntityUse("later", Tags("alice", None), 1, 1)))
        fleet.members[0].receive(b"f" * 16, encode(message), fleet.now)
    assert fleet.members[0].tracked == 0
    assert not fleet.members[0].status.skipped


def test_garbage_is_skipped_and_counted() -> None:
    fleet = begun(1)
    member = fleet.members[0]
    for key, value in ((b"x", b"{}"), (b"0" * 16, b"x"), (None, None)):
        member.receive(key, value, fleet.now)
    assert member.status.skipped == {"bad_key": 2, "bad_json": 1}


def test_unused_entities_are_forgotten() -> None:
    fleet = begun(2)
    fleet.use(0, 500)
    fleet.run(1.0)
    fleet.run(FORGET_SECONDS + 2 * SWEEP_SECONDS)
    assert [member.tracked for member in fleet.members.values()] == [1, 0], "the totals of peers are forgotten first"
    fleet.run(FORGET_SECONDS + SWEEP_SECONDS)
    assert [member.tracked for member in fleet.members.values()] == [0, 0]
    fleet.use(0, 500)
    settled(fleet)
    assert round(fleet.tokens(1)) == 10_000, "500 were used and refilled"


@pytest.mark.parametrize("silence", [30.0, 62.0, 64.0, 68.0, 72.0, 120.0, 128.0, 136.0, 144.0])
def test_burst_after_any_silence_counts_at_peers(silence: float) -> None:
    fleet = begun(2)
    fleet.run(FORGET_SECONDS + SWEEP_SECONDS)
    for _ in range(2):
        fleet.use(0, 20_000)
        fleet.run(silence)
    fleet.use(0, 20_000)
    settled(fleet)
    assert -10_000 <= fleet.tokens(1) <= -8_000


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_use_within_a_long_window_counts_once(algorithm: str) -> None:
    fleet = Fleet(2, algorithm=algorithm, window=LONG_WINDOW)
    fleet.run(FORGET_SECONDS + SWEEP_SECONDS)
    for _ in range(3):
        fleet.use(0, 8_000)
        fleet.run(FORGET_SECONDS + 2 * SWEEP_SECONDS)
    assert fleet.bucket(1).others_total == 3 * 8_000


def test_use_of_member_after_silence_counts_once() -> None:
    fleet = Fleet(2, window=LONG_WINDOW)
    fleet.run(1.0)
    fleet.use(0, 8_000)
    settled(fleet)
    fleet.down = {0}
    fleet.run(FORGET_SECONDS + 2 * SWEEP_SECONDS)
    fleet.down = set()
    fleet.use(0, 8_000)
    settled(fleet)
    assert fleet.bucket(1).others_total == 2 * 8_000


def test_saved_use_of_an_unknown_kind_is_ignored() -> None:
    fleet = begun(1)
    fleet.members[0].restore_peer(PeerTotals("f" * 16, 1, {("later", "a"): 1}), fleet.now, fleet.now)
    fleet.run(1.0)
    assert fleet.members[0].tracked == 0


def test_entity_that_lost_its_quota_is_forgotten() -> None:
    fleet = begun(1)
    fleet.use(0, 1)
    fleet.members[0].step(fleet.now, publish=False)
    fleet.engines[0].apply(QuotaSettings(), fleet.now)
    fleet.run(2 * FORGET_SECONDS + 3 * SWEEP_SECONDS)
    assert fleet.members[0].tracked == 0


def many_users(fleet: Fleet, count: int, amount: int) -> None:
    each = EntityQuota(ClientQuotaEntity(user=DEFAULT), {"producer_byte_rate": LIMIT})
    fleet.engines[0].apply(QuotaSettings(quotas=(each,)), fleet.now)
    for number in range(count):
        bucket_of(fleet.engines[0], "produce", f"user-{number}", "", fleet.now).charge(amount, fleet.now)


def test_last_messages_have_all_use() -> None:
    fleet = begun(1)
    many_users(fleet, 2 * MAX_ENTITIES + 1, 1)
    *uses, (_, tombstone) = fleet.members[0].final_records(fleet.now)
    assert [len(parse(value or b"").entities) for _, value in uses] == [MAX_ENTITIES, MAX_ENTITIES, 1]
    assert tombstone is None


def test_last_messages_are_no_backlog_to_peers() -> None:
    fleet = begun(1)
    many_users(fleet, 10 * MAX_ENTITIES, 1)
    assert len(fleet.members[0].final_records(fleet.now)) == LAST_RECORDS + 1 <= TIMELY_RECORDS


def test_steps_may_mix_with_charges_and_messages() -> None:
    """As if the event loop served clients, and read the topic, after each step."""
    fleet = begun(2)
    fleet.engines[0].apply(QuotaSettings(QUOTAS), fleet.now)
    names = [f"client-{number}" for number in range(5 * PIECE)]
    sender, receiver = fleet.engines[0], fleet.members[1]
    buckets = [bucket_of(sender, "produce", "user", name, fleet.now) for name in names]
    peer = [bucket_of(fleet.engines[1], "produce", "user", name, fleet.now) for name in names]
    for _ in range(20):
        fleet.now += INTERVAL
        steps = fleet.members[0].steps(lambda: fleet.now, publish=True)
        while True:
            for bucket in buckets:
                bucket.charge(1, fleet.now)
            fleet.members[0].receive(*fleet.log[-1], fleet.now)
            fleet.now += 0.001
            try:
                next(steps)
            except StopIteration as end:
                for record in end.value:
                    receiver.receive(*record, fleet.now)
                    fleet.members[0].receive(*record, fleet.now)
                break
    for record in fleet.members[0].final_records(fleet.now):
        receiver.receive(*record, fleet.now)
    assert [bucket.others_total for bucket in peer] == [bucket.amount_total for bucket in buckets]


def test_message_is_bounded_and_rest_follows() -> None:
    fleet = begun(1)
    fleet.engines[0].apply(
        QuotaSettings(quotas=(EntityQuota(ClientQuotaEntity(user=DEFAULT, client_id=DEFAULT), {"producer_byte_rate": LIMIT}),)),
        fleet.now,
    )
    for number in range(MAX_ENTITIES + 100):
        bucket_of(fleet.engines[0], "produce", f"user-{number}", "any", fleet.now).charge(5_000, fleet.now)
    fleet.run(2 * INTERVAL)
    first, second = (parse(value) for _, value in fleet.log[-2:] if value is not None)
    assert (len(first.entities), len(second.entities)) == (MAX_ENTITIES, 100)
    assert fleet.members[0].status.left_out_total == 100


@pytest.mark.parametrize("character", ["c", "é", "\U0001f600"])
def test_message_of_long_names_is_within_its_bounds(character: str) -> None:
    client = (EntityQuota(ClientQuotaEntity(DEFAULT, DEFAULT), {"producer_byte_rate": LIMIT}),)
    engine = QuotaEngine(
        QuotaSettings((*client, EntityQuota(ClientQuotaEntity(DEFAULT), {"max_connections": 2}))), 0.0, shared=True
    )
    connections = ConnectionQuotas(
        engine, ConnectionLimits(1_000, {}, AcceptLimits(None), {"clients": AcceptLimits(None)}), 0.0
    )
    member = Member("0" * 16, engine, INTERVAL, 0.0, shared=(connections,), counts=(connections,))
    for number in range(600):
        name = f"{number:03}" + character * 252
        slot = connections.accept("clients", "10.0.0.1", 0.0)
        assert isinstance(slot, ConnectionSlot)
        slot.identify(name, 0.0)
        bucket_of(engine, "produce", name, name, 0.0).charge(5_000, 0.0)
    ((_, value),) = member.step(INTERVAL)
    message = parse(value or b"")
    assert message.entities
    assert message.connections
    assert len(value or b"") <= MAX_MESSAGE_BYTES * 3 // 4


@pytest.mark.parametrize(("members", "rows"), [(1, 500), (8, 500), (20, 200), (100, 40), (1_000, 20)])
def test_message_has_fewer_entities_among_more_members(members: int, rows: int) -> None:
    fleet = begun(1)
    fleet.engines[0].apply(
        QuotaSettings(quotas=(EntityQuota(ClientQuotaEntity(user=DEFAULT), {"producer_byte_rate": LIMIT}),)), fleet.now
    )
    member = fleet.members[0]
    for number in range(2, members + 1):
        for sequence in (1, 2):
            member.handle(f"{number:016x}", UseMessage(sequence, ()), fleet.now)
    member.step(fleet.now)
    for number in range(600):
        bucket_of(fleet.engines[0], "produce", f"user-{number}", "", fleet.now).charge(5_000 + number, fleet.now)
    ((_, value),) = member.step(fleet.now + member.interval)
    message = parse(value or b"")
    assert [use.total for use in message.entities] == list(range(5_599, 5_599 - rows, -1))


@pytest.mark.parametrize(("members", "pause"), [(1, 0.0), (100, 0.0), (200, 0.04), (1_000, 0.2)])
def test_crowd_reads_many_records_at_once(members: int, pause: float) -> None:
    fleet = begun(1)
    member = fleet.members[0]
    for number in range(2, members + 1):
        for sequence in (1, 2):
            member.handle(f"{number:016x}", UseMessage(sequence, ()), fleet.now)
    member.step(fleet.now)
    assert reading_pause(member.interval, INTERVAL) == pytest.approx(pause)


@pytest.mark.parametrize("clients", [10, 100])
def test_burst_at_ten_members_stays_within_bound(clients: int) -> None:
    outcome = simulate(Scenario(members=10, clients=clients, seconds=3.0))
    assert outcome.overshoot_bytes <= outcome.overshoot_bound_bytes


def test_simulated_fleet_stays_within_bound() -> None:
    scenario = Scenario(members=5, clients=20, seconds=25.0)
    outcome = simulate(scenario)
    assert outcome.overshoot_bytes <= outcome.overshoot_bound_bytes
    assert abs(outcome.rate_ratio - 1.0) <= 0.03
    assert outcome.empty_seconds == 0
    assert outcome == simulate(scenario), "the simulation is seeded"


@pytest.mark.parametrize(("by_broker", "charged"), [({0, 1}, {1}), ({0}, set()), ({1}, set())])
def test_use_at_a_broker_is_shared_in_the_same_scope(by_broker: set[int], charged: set[int]) -> None:
    fleet = Fleet(2, by_broker=frozenset(by_broker))
    fleet.run(2)
    fleet.engines[0].acquire_path("produce", "alice", "", fleet.now, broker=1)[0].charge(5_000, fleet.now)
    fleet.run(1)
    buckets = {broker: fleet.engines[1].acquire_path("produce", "alice", "", fleet.now, broker=broker)[0] for broker in (1, 2)}
    assert {broker for broker, bucket in buckets.items() if (bucket.meter.tokens(fleet.now) or 0) < 7_000} == charged  # type: ignore[union-attr]
