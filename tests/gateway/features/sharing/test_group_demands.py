"""Gateways that divide a capacity among groups together."""

from collections import deque
from math import inf

import pytest

from gateway.features.sharing.member import Member
from gateway.features.sharing.peer_demands import REPEAT_MESSAGES, STALE_INTERVALS, PeerDemands
from gateway.features.sharing.use_message import MAX_DEMANDS, UseMessage, encode, parse
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import Tags
from gateway.quotas.groups import Group, GroupRule
from tests.gateway.quotas.greedy_clients import START, Sender, Traffic
from tests.gateway.quotas.grouped import grouped

MB8 = 8_000_000.0
INTERVAL = 0.2
KEY = "producer_byte_rate"


def groups(**shares):
    whole = Group("all", (), {KEY: MB8})
    below = [
        Group(name, (GroupRule(user=f"{name}*"),), {}, parent="all", guarantees={KEY: guarantee}, weights={KEY: weight})
        for name, (weight, guarantee) in shares.items()
    ]
    return (whole, *below)


class Gateways:
    """Members whose records arrive `delay` seconds after each step. `dead` members neither publish nor receive."""

    def __init__(self, count, every, delay=0.0):
        settings = grouped(every)
        self.engines = [QuotaEngine(settings, START, shared=True) for _ in range(count)]
        self.members = [Member(f"{number + 1:016x}", engine, INTERVAL, START) for number, engine in enumerate(self.engines)]
        self.dead = set()
        self.delay = delay
        self._late = []

    def step(self, now):
        arrived = self._late if self.delay else []
        self._late = []
        for number, member in enumerate(self.members):
            if number not in self.dead:
                self._late += member.step(now)
        for record in arrived if self.delay else self._late:
            for number, member in enumerate(self.members):
                if number not in self.dead:
                    member.receive(*record, now)
        if round(now / INTERVAL) % 5 == 0:
            for engine in self.engines:
                engine.tick(now)

    def allocations(self, now):
        return [
            {row.group: row.allocation / MB8 for row in engine.group_buckets.rows(now) if row.parent}
            for number, engine in enumerate(self.engines)
            if number not in self.dead
        ]


class GatewaysInTurn(Gateways):
    """One member steps at each call, and its record arrives `lag` calls later. Call `step` `count` times in an interval."""

    def __init__(self, count, every, lag=1):
        super().__init__(count, every)
        self._calls = 0
        self._records = deque([[]] * lag)

    def step(self, now):
        for record in self._records.popleft():
            for member in self.members:
                member.receive(*record, now)
        number = self._calls % len(self.members)
        self._records.append(self.members[number].step(now))
        if self._calls // len(self.members) % 5 == 0:
            self.engines[number].tick(now)
        self._calls += 1


def begun_in_turn(every, lag=1):
    gateways = GatewaysInTurn(2, every, lag)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / 2)
    traffic.run([], 2)
    return traffic


def begun(count, every, delay=0.0):
    gateways = Gateways(count, every, delay)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL)
    traffic.run([], 2)
    return gateways, traffic


@pytest.mark.parametrize("delay", [0.0, INTERVAL])
def test_two_gateways_divide_as_one(delay):
    gateways, traffic = begun(2, groups(a=(3, 0), b=(1, 0)), delay)
    traffic.run([Sender("a", gateway=0), Sender("b", gateway=0), Sender("a2", gateway=1)], 14)
    shares = traffic.shares(MB8, 6, 16)
    assert shares["a"] + shares["a2"] == pytest.approx(0.75, abs=0.02)
    assert shares["b"] == pytest.approx(0.25, abs=0.02)
    assert gateways.allocations(traffic.now) == [pytest.approx({"a": 0.75, "b": 0.25})] * 2


def test_idle_group_returns_at_another_gateway():
    _, traffic = begun(2, groups(a=(1, 0), b=(1, MB8 / 2)))
    traffic.run([Sender("a", gateway=0), Sender("b", lambda seconds: seconds >= 8, gateway=1)], 18)
    assert traffic.shares(MB8, 5, 10) == pytest.approx({"a": 1.0}, abs=0.02)
    assert traffic.shares(MB8, 10, 12)["b"] > 0.5
    assert traffic.shares(MB8, 12, 20) == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.03)
    seconds = traffic.whole(MB8, 5, 20)
    assert min(seconds) > 0.8
    assert max(seconds) < 1.2


@pytest.mark.parametrize("count", [1, 2])
def test_busy_groups_leave_a_tree_without_a_fresh_burst(count):
    gateways, traffic = begun(count, groups(a=(1, 0), b=(1, 0)))
    senders = [Sender("a", gateway=0), Sender("b", gateway=0)]  # a peer knows their use only from messages
    traffic.run(senders, 14)
    flat = tuple(Group(name, (GroupRule(user=f"{name}*"),), {KEY: MB8 / 2}) for name in "ab")
    for engine in gateways.engines:
        engine.apply(grouped(flat), traffic.now)
    traffic.run([Sender(name, gateway=count - 1) for name in "ab"], 4)
    assert sum(traffic.whole(MB8, 16, 18)) / 2 < 1.1


def test_many_gateways_use_a_whole_tree():
    """A turn that outlasts the parent's burst would leave a sixth of the capacity unused."""
    gateways = GatewaysInTurn(20, groups(a=(1, 0), b=(1, MB8 / 2)), lag=5)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / 20, size=262_144)
    traffic.run([], 2)
    traffic.run([Sender("a", gateway=number, connections=1) for number in range(20)], 18)
    assert sum(traffic.whole(MB8, 8, 20)) / 12 >= 0.97


@pytest.mark.parametrize("lag", [1, 2])
def test_starts_and_stops_at_two_gateways_exceed_little(lag):
    traffic = begun_in_turn(groups(a=(1, 0), b=(1, MB8 / 2)), lag)
    senders = [Sender("a", gateway=number, connections=1) for number in (0, 1)]
    senders += [Sender("b", lambda seconds: int(seconds / 6) % 2 == 1, gateway=number, connections=1) for number in (0, 1)]
    traffic.run(senders, 60)
    seconds = traffic.whole(MB8, 4, 62)
    assert min(seconds) > 0.9
    assert max(seconds) < 1.1
    assert all(0.98 < sum(seconds[begin : begin + 5]) / 5 < 1.02 for begin in range(len(seconds) - 4))
    assert sum(seconds) / len(seconds) > 0.99
    for start in range(8, 62, 12):
        assert traffic.shares(MB8, start, start + 2)["b"] > 0.5
        assert traffic.shares(MB8, start + 2, start + 6)["b"] == pytest.approx(0.75, abs=0.03)


def test_large_requests_at_two_gateways_keep_their_shares():
    traffic = begun_in_turn(groups(a=(1, 0), b=(1, MB8 / 2)))
    traffic.size = 262_144
    traffic.run([Sender(name, gateway=number, connections=5) for name in "ab" for number in (0, 1)], 40)
    assert traffic.shares(MB8, 12, 42) == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.02)


def test_group_at_one_gateway_gets_its_share():
    """The gateway presumes use of three peers, whose clients want little. That costs the group nothing of its entitlement."""
    gateways = GatewaysInTurn(4, groups(a=(1, 0), b=(1, 0)))
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / 4)
    traffic.run([], 2)
    senders = [Sender("a", gateway=0)]
    senders += [Sender("a-light", rate=0.01 * MB8, gateway=number, connections=1) for number in (1, 2, 3)]
    senders += [Sender("b", gateway=number, connections=1) for number in range(4)]
    traffic.run(senders, 18)
    shares = traffic.shares(MB8, 8, 20)
    assert shares["a"] + shares["a-light"] == pytest.approx(0.5, abs=0.02)
    assert shares["b"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("number", [0, 1])
def test_balances_of_a_group_agree_again(number):
    """Spare tokens pay debts at one gateway only. Its clients would get more than those of the other for good."""
    gateways, traffic = begun(2, groups(a=(1, 0), b=(1, 0)))
    senders = [Sender(name, gateway=gateway, connections=1) for name in "ab" for gateway in (0, 1)]
    traffic.run(senders, 6)
    meters = [engine.peer_account("produce", Tags(None, None, group="a"), traffic.now).meter for engine in gateways.engines]
    meters[number].own.charge_others(2.0 * MB8, traffic.now)
    traffic.run(senders, 16)
    assert meters[0].tokens(traffic.now) == pytest.approx(meters[1].tokens(traffic.now), abs=0.1 * MB8)


@pytest.mark.parametrize("number", [0, 1])
def test_gateway_without_saved_use_gets_its_share_again(number):
    """Its copy of the parent's bucket begins full, and peers charge little of its first use."""
    every = groups(a=(1, 0), b=(1, 0))
    gateways = GatewaysInTurn(2, every)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / 2)
    traffic.run([], 2)
    senders = [Sender(f"{name}{gateway}", gateway=gateway, connections=1) for name in "ab" for gateway in (0, 1)]
    traffic.run(senders, 8)
    gateways.engines[number] = QuotaEngine(grouped(every), traffic.now, shared=True)
    gateways.members[number] = Member(f"{9:016x}", gateways.engines[number], INTERVAL, traffic.now)
    traffic.run(senders, 20)
    assert traffic.shares(MB8, 20, 30) == pytest.approx(dict.fromkeys(["a0", "a1", "b0", "b1"], 0.25), abs=0.01)


def test_gateways_that_start_anew_in_turn_get_their_shares():
    """The whole tree is busy, so no bucket fills up. Differences between the copies of a bucket must not stay for good."""
    every, count = groups(a=(1, 0)), 8
    gateways = GatewaysInTurn(count, every, lag=3)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / count, size=65_536)
    senders = [Sender(f"a{number}", gateway=number, connections=1) for number in range(count)]
    traffic.run(senders, 10)
    for number in range(count):
        gateways.engines[number] = QuotaEngine(grouped(every), traffic.now, shared=True)
        gateways.members[number] = Member(f"{number * 7 % 5 + 9:015x}{number}", gateways.engines[number], INTERVAL, traffic.now)
        traffic.run(senders, 6)
    traffic.run(senders, 82)
    assert traffic.shares(MB8, 120, 140) == pytest.approx({f"a{number}": 1 / count for number in range(count)}, abs=0.02)


@pytest.mark.parametrize("size", [16_384, 65_536])
def test_groups_at_their_own_gateways_get_their_shares(size):
    """The group `idle` wants nothing, so its guarantee is divided above it. Its parent has no more than its own part."""
    every = (
        Group("all", (), {KEY: MB8}),
        Group("in", (), {}, parent="all", weights={KEY: 2.0}),
        Group("idle", (GroupRule(user="idle"),), {}, parent="in", weights={KEY: 2.0}, guarantees={KEY: 0.53 * MB8}),
        Group("a", (GroupRule(user="a"),), {}, parent="in", weights={KEY: 10.0}),
        Group("b", (GroupRule(user="b"),), {}, parent="all", weights={KEY: 2.0}, guarantees={KEY: 0.15 * MB8}),
    )
    gateways = GatewaysInTurn(2, every)
    traffic = Traffic(gateways.engines, gateways.step, INTERVAL / 2, size=size)
    traffic.run([], 2)
    traffic.run([Sender("a", gateway=1, connections=1), Sender("b", gateway=0, connections=1)], 22)
    assert traffic.shares(MB8, 8, 24) == pytest.approx({"a": 0.425, "b": 0.575}, abs=0.015)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("size", [16_384, 65_536])
def test_group_that_starts_first_keeps_nothing_lent(size, first):
    """A third group is idle. Its part is divided evenly, although the other groups are at gateways of their own."""
    traffic = begun_in_turn(groups(a=(1, 0), b=(1, 0), idle=(1, 0)))
    traffic.size = size
    early, late = "ab"[first], "ab"[1 - first]
    senders = [Sender(early, gateway=first, connections=1)]
    senders += [Sender(late, lambda seconds: seconds >= 4, gateway=1 - first, connections=1)]
    traffic.run(senders, 20)
    assert traffic.shares(MB8, 10, 22) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.02)
    assert max(traffic.whole(MB8, 4, 22)) < 1.08


def test_group_that_becomes_a_parent_reports_its_use():
    """Its total must not fall: peers would not hear of its use before the old total is passed."""
    flat = (Group("pay", (GroupRule(user="pay*"),), {KEY: MB8}),)
    deep = (Group("pay", (), {KEY: MB8}), Group("cards", (GroupRule(user="pay*"),), {}, parent="pay"))
    gateways = Gateways(2, flat)
    first, second = gateways.engines
    reported = []
    for number, amount in enumerate((4_000_000, 1_000_000)):
        now = START + 5.0 * number
        if number:
            for engine in gateways.engines:
                engine.apply(grouped(deep), now)
        for bucket in first.acquire_path("produce", "pay-1", "x", now):
            bucket.charge(amount, now)
        for step in range(15):
            gateways.step(now + INTERVAL * step)
        reported.append(second.peer_account("produce", Tags(None, None, group="pay"), now).others_total)
    assert reported == [4_000_000, 5_000_000]


def test_clients_of_a_dead_gateway_want_nothing():
    gateways, traffic = begun(2, groups(a=(1, 0), b=(1, 0)))
    traffic.run([Sender("a", gateway=0), Sender("b", gateway=1)], 6)
    gateways.dead.add(1)
    traffic.run([Sender("a", gateway=0)], 12)
    assert traffic.shares(MB8, 18, 20) == pytest.approx({"a": 1.0}, abs=0.02)


def test_many_gateways_agree_within_bounded_messages():
    names = {f"g{number:03}-{'x' * 20}": (number % 7 + 1, 0) for number in range(300)}
    gateways, traffic = begun(20, groups(**names))
    for number, engine in enumerate(gateways.engines):
        for name in list(names)[number::20]:
            path = engine.acquire_path("produce", name, "", traffic.now)
            path[1].charge(int(MB8), traffic.now)
    traffic.run([], 2)
    first, *others = gateways.allocations(traffic.now)
    assert all(other == pytest.approx(first) for other in others)
    whole = sum(weight for weight, _ in names.values())
    assert first == pytest.approx({name: weight / whole for name, (weight, _) in names.items()})


def test_demands_survive_the_message():
    message = UseMessage(3, (), demands={("produce", "a"): 12.5, ("fetch", "b"): inf, ("fetch", "c"): 0.0})
    assert parse(encode(message)) == message


def test_message_of_an_older_weir_has_no_demands():
    assert parse(b'{"Version": 1, "Sequence": 4, "Entities": []}').demands == {}


@pytest.mark.parametrize("row", ['["a"]', '["produce", "a", -1]', '["produce", 7, 1]', '["produce", "a", NaN]'])
def test_bad_demand_is_skipped(row):
    message = parse(f'{{"Version": 1, "Sequence": 4, "Entities": [], "Demands": [{row}, ["produce", "b", 2]]}}'.encode())
    assert message.demands == {("produce", "b"): 2.0}
    assert message.skipped == ("bad_type",)


class Wants:
    """Groups with given demands."""

    def __init__(self):
        self.demands = {}
        self.divided = None

    def measure(self, now):
        return dict(self.demands)

    def divide(self, demands, interval, now):
        self.divided = demands


def test_demands_of_peers_are_added():
    subject, wants = PeerDemands(), Wants()
    wants.demands = {("produce", "a"): 5.0}
    subject.receive("p", {("produce", "a"): 10.0, ("produce", "b"): inf}, 1.0)
    subject.receive("q", {("produce", "a"): 20.0, ("produce", "b"): 3.0}, 1.0)
    subject.divide(wants, INTERVAL, 1.1)
    assert wants.divided == {("produce", "a"): 35.0, ("produce", "b"): inf}
    subject.receive("p", {("produce", "b"): 0.0}, 1.2)
    subject.divide(wants, INTERVAL, 1.3)
    assert wants.divided == {("produce", "a"): 35.0, ("produce", "b"): 3.0}
    subject.forget("q")
    subject.divide(wants, INTERVAL, 1.4)
    assert wants.divided == {("produce", "a"): 15.0}


def test_demand_that_is_not_repeated_is_forgotten():
    subject, wants = PeerDemands(), Wants()
    subject.receive("p", {("produce", "a"): inf}, 1.0)
    subject.divide(wants, INTERVAL, 1.0 + (STALE_INTERVALS - 1) * INTERVAL)
    assert wants.divided == {("produce", "a"): inf}
    subject.divide(wants, INTERVAL, 1.1 + STALE_INTERVALS * INTERVAL)
    assert wants.divided == {}


def test_changed_demand_is_published_at_once_and_repeated_later():
    subject, wants = PeerDemands(), Wants()

    def published(sequence, **demands):
        wants.demands = {("produce", name): demand for name, demand in demands.items()}
        subject.divide(wants, INTERVAL, float(sequence))
        return {name: demand for (_, name), demand in subject.chosen(sequence, 10_000)[0].items()}

    assert published(1, a=100.0, b=inf) == {"a": 100.0, "b": inf}
    assert published(2, a=104.0, b=inf) == {}
    assert published(3, a=120.0, b=inf) == {"a": 120.0}
    assert published(4, a=120.0, b=50.0) == {"b": 50.0}
    assert published(3 + REPEAT_MESSAGES, a=121.0, b=50.0) == {"a": 121.0}
    assert published(4 + REPEAT_MESSAGES, a=121.0) == {"b": 0.0}
    assert published(4 + 2 * REPEAT_MESSAGES, a=121.0) == {"a": 121.0, "b": 0.0}
    assert published(4 + 3 * REPEAT_MESSAGES) == {"a": 0.0}


def test_demands_beyond_the_message_follow_in_the_next():
    subject, wants = PeerDemands(), Wants()
    wants.demands = {("produce", f"g{number}"): inf for number in range(MAX_DEMANDS + 10)}
    subject.divide(wants, INTERVAL, 1.0)
    chosen, left_out = subject.chosen(1, 1_000_000)
    assert (len(chosen), left_out) == (MAX_DEMANDS, 10)
    assert len(subject.chosen(2, 1_000_000)[0]) == 10


def test_demands_of_unknown_groups_take_no_memory():
    (engine,) = begun(1, groups(a=(1, 0)))[0].engines
    member = Member("f" * 16, engine, INTERVAL, START)
    for sequence in range(1, 4):
        demands = {("produce", f"{sequence}-{number}"): inf for number in range(MAX_DEMANDS - 2)}
        demands |= {("produce", "a"): inf, ("fetch", "a"): inf}
        member.receive(b"e" * 16, encode(UseMessage(sequence, (), demands=demands)), START)
    assert member._demands.whole({}) == {("produce", "a"): inf}


@pytest.mark.parametrize("steady", [10.0, inf])
def test_changing_demands_keep_out_no_other(steady):
    subject, wants, latest = PeerDemands(), Wants(), {}
    for sequence in range(1, 41):
        wants.demands = {("produce", f"g{number}"): 10.0 + sequence % 2 for number in range(1_000)}
        wants.demands |= {("produce", f"steady{number}"): steady for number in range(10)}
        subject.divide(wants, INTERVAL, float(sequence))
        latest |= dict.fromkeys(subject.chosen(sequence, 64 * 1024)[0], sequence)
    assert latest.keys() == wants.demands.keys()
    assert min(latest.values()) > 40 - STALE_INTERVALS


@pytest.mark.parametrize("character", ["g", "é", "\U0001f600"])
def test_demands_with_long_names_keep_within_their_room(character):
    subject, wants = PeerDemands(), Wants()
    wants.demands = {("produce", character * 250 + str(number)): 1.0 / 3.0 for number in range(100)}
    subject.divide(wants, INTERVAL, 1.0)
    chosen, left_out = subject.chosen(1, 10_000)
    assert 0 < len(chosen) == 100 - left_out
    assert len(encode(UseMessage(1, (), demands=chosen))) < 10_100


def test_huge_demand_of_one_peer_leaves_no_trace():
    demands, key = PeerDemands(), ("produce", "a")
    demands.receive("small", {key: 0.25}, START)
    demands.receive("huge", {key: 2.0**63 - 1}, START)
    demands.receive("huge", {key: 0.0}, START)
    assert demands.whole({}) == {key: 0.25}


def test_spare_tokens_pay_for_the_use_of_peers_too():
    """A peer's clients may use the ceiling while the parent has spare tokens. Their use leaves no lasting debt here."""
    every = (Group("all", (), {KEY: MB8}), *[Group(name, (), {KEY: 0.6 * MB8}, parent="all") for name in "ab"])
    engine = QuotaEngine(grouped(every), START, shared=True)
    accounts = [engine.peer_account("produce", Tags(None, None, group=name), START) for name in ("a", "all")]
    engine.group_buckets.divide({("produce", name): inf for name in "ab"}, INTERVAL, START)
    for number in range(100):
        for account in accounts:
            account.charge_others(int(0.6 * MB8 * INTERVAL), START + number * INTERVAL, no_debt=False)
    assert accounts[0].meter.delay(START + 99 * INTERVAL) < 1.0
