"""The rate that the clients of several gateways get for good, in parts of their quota."""

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import cycle

import pytest

from gateway.features.sharing.member import Member, MemberRecord
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.line import Consumer
from gateway.quotas.settings import QuotaSettings
from tests.gateway.quotas.engines import bucket_of
from tests.gateway.quotas.greedy_clients import START, Sender, Traffic

INTERVAL = 0.2
QUOTA = 100_000.0
MIB = 1 << 20


def alice(quota: float, algorithm: str = "token_bucket") -> QuotaSettings:
    return QuotaSettings((EntityQuota(ClientQuotaEntity(user="alice"), {"producer_byte_rate": quota}),), algorithm=algorithm)


def tree(quota: float) -> QuotaSettings:
    """A group with a client, below a group with the quota."""
    limits = {"producer_byte_rate": quota}
    groups = (Group("all", (), limits), Group("jobs", (GroupRule(user="alice"),), parent="all"))
    return QuotaSettings(tuple(group.quota for group in groups if group.limits), groups=groups)


def traffic(count: int, settings: QuotaSettings, size: int) -> Traffic:
    return fleet(count, settings, size)[0]


def fleet(count: int, settings: QuotaSettings, size: int, away: Collection[int] = ()) -> tuple[Traffic, list[Member]]:
    """Gateways whose records arrive at once, and their members, which the test may replace. Those `away` do nothing."""
    engines = [QuotaEngine(settings, START, shared=True) for _ in range(count)]
    members = [Member(f"{number + 1:016x}", engine, INTERVAL, START) for number, engine in enumerate(engines)]

    def step(now: float) -> None:
        present = [member for number, member in enumerate(members) if number not in away]
        for record in [record for member in present for record in member.step(now)]:
            for member in present:
                member.receive(*record, now)

    found = Traffic(engines, step, INTERVAL, size)
    found.run([], 2)
    return found, members


@pytest.mark.parametrize("settings", [alice(QUOTA), tree(QUOTA)], ids=["entity", "tree"])
def test_requests_worth_more_than_the_burst_keep_the_quota(settings: QuotaSettings) -> None:
    """Four requests are worth 42 s of the quota."""
    found = traffic(4, settings, MIB)
    found.run([Sender("alice", gateway=number, connections=1) for number in range(4)], 400)
    assert found.shares(QUOTA, 100, 400)["alice"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("seconds", [1.0, 2.0])
def test_few_of_many_gateways_use_the_whole_quota(seconds: float) -> None:
    """One request is worth so many seconds of the quota. Clients pause for longer than their use counts as recent."""
    found = traffic(10, alice(QUOTA), int(QUOTA * seconds))
    found.run([Sender("alice", gateway=number, connections=1) for number in range(2)], 120)
    assert found.shares(QUOTA, 40, 120)["alice"] == pytest.approx(1.0, abs=0.05)


def test_gateways_use_a_window_that_becomes_free_once() -> None:
    found = traffic(10, alice(10 * QUOTA, "window"), MIB // 16)
    found.run([Sender("alice", gateway=number, connections=1) for number in range(10)], 150)
    assert found.shares(10 * QUOTA, 40, 150)["alice"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("count", "consumers"), [(4, 4), (8, 1)])
def test_consumers_get_the_quota_of_a_window(count: int, consumers: int) -> None:
    """Responses over the quota are taken back, as the Fetch handler does. One gateway gives 0.95 of the quota."""
    settings = QuotaSettings((EntityQuota(ClientQuotaEntity("alice"), {"consumer_byte_rate": MIB}),), algorithm="window")
    engines = [QuotaEngine(settings, START, shared=True) for _ in range(count)]
    members = [Member(f"{number + 1:016x}", engine, INTERVAL, START) for number, engine in enumerate(engines)]
    buckets = [bucket_of(engine, "fetch", "alice", "", START) for engine in engines[:consumers]]
    places, due = [Consumer() for _ in buckets], [START + 2.0 + 0.003 * number for number in range(consumers)]
    batch, sent, now, step = MIB // 64, [0] * 120, START, START
    while now < START + 119.0:
        now = min(step, *due)
        if now == step:
            for record in [record for member in members for record in member.step(now)]:
                for member in members:
                    member.receive(*record, now + 0.01)
            step += INTERVAL
            continue
        for number, bucket in enumerate(buckets):
            if due[number] > now:
                continue
            delay = bucket.admit_fetch(places[number], now)[0]
            if delay == 0.0:
                allowance = min(bucket.fetch_allowance(batch, now), MIB)
                size = max(allowance - allowance % batch, batch)
                delay, enforced = bucket.charge_fetch(places[number], size, now)
                if enforced:
                    bucket.record(-size, now)
                else:
                    sent[int(now - START)] += size
            due[number] = now + max(delay, 0.01)
    assert sum(sent[2:]) == pytest.approx(117 * MIB, rel=0.15)
    assert max(sum(sent[begin : begin + 11]) for begin in range(2, 108)) <= (11 + consumers) * MIB


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_a_new_gateway_owes_the_debt_of_its_peers(seconds: float) -> None:
    """One of four gateways is replaced without its usage file. One request is worth so many seconds of the quota."""
    settings = alice(QUOTA)
    found, members = fleet(4, settings, int(QUOTA * seconds))
    senders = [Sender("alice", gateway=number, connections=1) for number in range(4)]
    found.run(senders, 40)
    found.engines[0] = QuotaEngine(settings, found.now, shared=True)
    members[0] = Member("a" * 16, found.engines[0], INTERVAL, found.now)
    found.run(senders[1:], 5)
    buckets = [bucket_of(engine, "produce", "alice", "", found.now) for engine in found.engines]
    before = [bucket.amount_total for bucket in buckets]
    found.run(senders, 120)
    used = [bucket.amount_total - earlier for bucket, earlier in zip(buckets, before, strict=True)]
    assert used == pytest.approx([30 * QUOTA] * 4, rel=0.2)
    balances = [bucket.meter.tokens(found.now) / QUOTA for bucket in buckets]
    assert max(balances) - min(balances) < seconds


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_a_new_gateway_beside_one_peer_gets_its_part(seconds: float, first: bool) -> None:
    settings = alice(QUOTA)
    away = {1}
    found, members = fleet(2, settings, int(QUOTA * seconds), away)
    senders = [Sender("alice", gateway=number, connections=1) for number in range(2)]
    found.run(senders[:1], 20)
    found.engines[1] = QuotaEngine(settings, found.now, shared=True)
    members[1] = Member(("0" if first else "a") * 16, found.engines[1], INTERVAL, found.now)
    away.clear()
    assert parts(found, senders, 20, 60) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_a_gateway_that_was_away_agrees_with_its_peers(seconds: float, number: int) -> None:
    """A gateway hangs for ten seconds. Its clients paid their debts meanwhile, and its peers' clients did not."""
    away: set[int] = set()
    found, _ = fleet(2, alice(QUOTA), int(QUOTA * seconds), away)
    senders = [Sender("alice", gateway=number, connections=1) for number in range(2)]
    found.run(senders, 20)
    away.add(number)
    found.run([senders[1 - number]], 10)
    away.clear()
    assert parts(found, senders, 20, round(90 + 70 * seconds)) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("number", [0, 1])
def test_gateways_agree_after_a_limit_that_changed_late(number: int) -> None:
    """One gateway halves the quota four seconds before the other."""
    found, _ = fleet(2, alice(QUOTA), int(QUOTA / 20))
    senders = [Sender("alice", gateway=number, connections=1) for number in range(2)]
    found.run(senders, 20)
    for engine in (found.engines[number], found.engines[1 - number]):
        engine.apply(alice(QUOTA / 2), found.now)
        found.run(senders, 4)
    assert parts(found, senders, 20, 60) == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_first_gateway_without_enforcement_is_not_followed() -> None:
    """It publishes no balances. The others come back to one balance all the same, as with the limit that changed late."""
    found, _ = fleet(3, alice(QUOTA), int(QUOTA / 20))
    senders = [Sender("alice", gateway=number, connections=1) for number in (1, 2)]
    found.engines[0].apply(replace(alice(QUOTA), enforce=False), found.now)
    found.run(senders, 20)
    for engine in found.engines[1:]:
        engine.apply(alice(QUOTA / 2), found.now)
        found.run(senders, 4)
    assert parts(found, senders, 20, 60) == pytest.approx([0.0, 0.75, 0.75], abs=0.05)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_gateways_with_other_intervals_get_their_parts(seconds: float, slow: int) -> None:
    """Its peer would forget the use of the slow gateway between two of its messages."""
    found, members = fleet(2, alice(QUOTA), int(QUOTA * seconds))
    members[slow].configure(2.0, fair_share=False)
    senders = [Sender("alice", gateway=number, connections=1) for number in range(2)]
    assert parts(found, senders, 20, 60) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.5])
@pytest.mark.parametrize("count", [2, 4])
def test_gateways_with_late_messages_get_their_parts(count: int, seconds: float) -> None:
    """Messages take an interval. The first one's balance lacks the inflow of this time, and the newest use of the others."""
    engines = [QuotaEngine(alice(QUOTA), START, shared=True) for _ in range(count)]
    members = [Member(f"{number + 1:016x}", engine, INTERVAL, START) for number, engine in enumerate(engines)]
    turns = cycle(members)
    on_their_way: deque[list[MemberRecord]] = deque([[]] * count)

    def step(now: float) -> None:
        for record in on_their_way.popleft():
            for member in members:
                member.receive(*record, now)
        on_their_way.append(next(turns).step(now))

    found = Traffic(engines, step, INTERVAL / count, int(QUOTA * seconds))
    found.run([], 2)
    senders = [Sender("alice", gateway=number, connections=1) for number in range(count)]
    assert parts(found, senders, 20, 60) == pytest.approx([1.0] * count, abs=0.02)


def parts(found: Traffic, senders: list[Sender], wait: int, seconds: int) -> list[float]:
    """The bytes through each gateway after `wait` seconds, as parts of an equal share of the quota."""
    found.run(senders, wait)
    buckets = [bucket_of(engine, "produce", "alice", "", found.now) for engine in found.engines]
    before = [bucket.amount_total for bucket in buckets]
    found.run(senders, seconds)
    each = seconds * QUOTA / len(buckets)
    return [(bucket.amount_total - earlier) / each for bucket, earlier in zip(buckets, before, strict=True)]
