"""Maximum numbers of connections that hold for several gateways together, over a topic that is a list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.features.sharing.member import MIN_EXPIRY_SECONDS, Member
from gateway.features.sharing.peer_counts import COUNTS_OF_ALL, LEAST_COUNTS, PeerCounts
from gateway.features.sharing.use_message import MAX_COUNTS, parse
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings

INTERVAL = 0.2
ADDRESS = "10.0.0.1"


class Fleet:
    """Gateways with a listener `clients` and the users alice and bob, and the topic between the gateways."""

    def __init__(self, count, *, max_per_ip=100_000, gateway=None, listener=None, fair_share=False, **of_users):
        self.now = 100.0
        self.down = set()  # gateways that can't reach the topic
        self.gateways, self.members = [], []
        rows = tuple(EntityQuota(ClientQuotaEntity(user), {"max_connections": most}) for user, most in of_users.items())
        limits = ConnectionLimits(max_per_ip, {}, AcceptLimits(gateway), {"clients": AcceptLimits(listener)})
        for number in range(count):
            engine = QuotaEngine(QuotaSettings(rows), self.now, shared=True)
            quotas = ConnectionQuotas(engine, limits, self.now)
            member = Member(
                f"{number:016x}", engine, INTERVAL, self.now, fair_share=fair_share, shared=(quotas,), counts=(quotas,)
            )
            self.gateways.append(quotas)
            self.members.append(member)
        self.run(1.0)

    def run(self, seconds):
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            for number, member in enumerate(self.members):
                for record in member.step(self.now):
                    if number not in self.down:
                        for other, receiver in enumerate(self.members):
                            if other not in self.down:
                                receiver.receive(*record, self.now)

    def connect(self, number, user="alice", ip=ADDRESS):
        """A connection's slot; None if it has to wait or is refused."""
        quotas = self.gateways[number]
        if quotas.wait("clients", self.now) > 0.0:
            return None
        slot = quotas.accept("clients", ip, self.now)
        if not isinstance(slot, ConnectionSlot):
            return None
        if slot.identify(user, self.now).refused:
            slot.release()
            return None
        return slot


LIMITS = [{"max_per_ip": 12}, {"gateway": 12}, {"listener": 12}, {"alice": 12}]


@pytest.mark.parametrize("limits", LIMITS, ids=[next(iter(limits)) for limits in LIMITS])
@pytest.mark.parametrize("gateways", [2, 5])
def test_maximum_holds_for_all_gateways_together(gateways, limits):
    fleet = Fleet(gateways, **limits)
    slots = []
    for attempt in range(60):
        slots.append(fleet.connect(attempt % gateways))
        fleet.run(2 * INTERVAL)
    admitted = [slot for slot in slots if slot is not None]
    assert len(admitted) == 12
    admitted[0].release()
    fleet.run(2 * INTERVAL)
    assert fleet.connect(gateways - 1) is not None
    fleet.run(2 * INTERVAL)
    assert fleet.connect(0) is None


def test_excess_is_that_of_one_interval():
    fleet = Fleet(3, alice=10)
    for number in range(3):
        assert [fleet.connect(number) is not None for _ in range(11)] == [True] * 10 + [False]
    fleet.run(2 * INTERVAL)
    assert [gateway.users.count("alice") for gateway in fleet.gateways] == [30, 30, 30]
    assert not any(fleet.connect(number) for number in range(3))


def test_waiting_listener_resumes_when_a_peer_closes():
    fleet = Fleet(2, gateway=2)
    resumed = []
    fleet.gateways[1].on_release(lambda: resumed.append(fleet.gateways[1].wait("clients", fleet.now)))
    slots = [fleet.connect(0), fleet.connect(0)]
    fleet.run(2 * INTERVAL)
    assert fleet.connect(1) is None
    slots[0].release()
    fleet.run(2 * INTERVAL)
    assert resumed[-1] == 0.0


def test_counts_of_a_dead_gateway_expire():
    fleet = Fleet(2, alice=4)
    for _ in range(4):
        fleet.connect(0)
    fleet.run(1.0)
    fleet.down.add(0)
    assert fleet.connect(1) is None
    fleet.run(MIN_EXPIRY_SECONDS + 2 * INTERVAL)
    assert fleet.connect(1) is not None


def test_counts_of_a_gateway_that_leaves_are_gone_at_once():
    fleet = Fleet(2, alice=4)
    for _ in range(4):
        fleet.connect(0)
    fleet.run(1.0)
    for record in fleet.members[0].final_records(fleet.now):
        fleet.members[1].receive(*record, fleet.now)
    assert fleet.connect(1) is not None


@pytest.mark.parametrize(("fair_share", "admitted"), [(False, 10), (True, 5)])
def test_gateway_without_the_topic_has_its_part(fair_share, admitted):
    fleet = Fleet(2, alice=10, fair_share=fair_share)
    fleet.down |= {0, 1}
    fleet.run(MIN_EXPIRY_SECONDS + 1.0)
    assert sum(fleet.connect(0) is not None for _ in range(20)) == admitted


def test_small_counts_are_not_published():
    fleet = Fleet(4, max_per_ip=800, alice=80, bob=1_000_000)
    for _ in range(9):
        fleet.connect(0, "alice")
        fleet.connect(1, "bob")
    assert published(fleet, 0) == {}
    fleet.connect(0, "alice")
    assert published(fleet, 0) == {("user", "alice"): 10}
    fleet.connect(2, "alice")
    fleet.run(1.0)
    assert published(fleet, 2) == {("user", "alice"): 1}  # because a peer publishes it
    assert published(fleet, 1) == {}


def published(fleet, number):
    (_, value) = fleet.members[number].final_records(fleet.now)[0]
    return parse(value).connections


class OwnCounts:
    """`count` addresses with one connection each, and `few` listeners. The listeners are the emptiest."""

    kinds = frozenset(("listener",))

    def __init__(self, count, few=0):
        self.count = count
        self.few = few

    def open_counts(self, members, known):
        for number in range(self.count):
            yield ("ip", f"10.0.{number // 250}.{number % 250}"), 1 + number, 10_000
        for number in range(self.few):
            yield ("listener", f"clients-{number}"), 1, 1_000_000

    def heed_peers(self, peers, parts): ...


@pytest.mark.parametrize(
    ("members", "most"), [(1, MAX_COUNTS), (4, MAX_COUNTS), (10, COUNTS_OF_ALL // 10), (1_000, LEAST_COUNTS)]
)
def test_message_has_a_bounded_number_of_counts(members, most):
    chosen, _, left_out = PeerCounts(OwnCounts(1_000)).chosen(members, 1 << 20)
    assert (len(chosen), left_out) == (most, 1_000 - most)
    assert min(chosen.values()) == 1_001 - most  # the fullest


def test_message_has_bounded_bytes_of_counts():
    chosen, _, left_out = PeerCounts(OwnCounts(100)).chosen(1, 1_000)
    assert 0 < len(chosen) < 20
    assert left_out == 100 - len(chosen)


@pytest.mark.parametrize("members", [1, 1_000])
def test_each_message_has_the_counts_of_listeners(members):
    counts = PeerCounts(OwnCounts(1_000, few=10))
    for _ in range(3):
        chosen, _, _ = counts.chosen(members, 1 << 20)
        assert sum(kind == "listener" for kind, _ in chosen) == 10
        assert len(chosen) <= MAX_COUNTS


@pytest.mark.parametrize("count", [MAX_COUNTS + 1, 1_000, 3_210])
def test_left_out_counts_come_in_their_turn(count):
    counts, seen = PeerCounts(OwnCounts(count, few=3)), []
    _, turns, left_out = counts.chosen(1, 1 << 20)
    assert left_out == count + 3 - MAX_COUNTS
    for _ in range(turns - 1):
        seen += counts.chosen(1, 1 << 20)[0]
    assert len(set(seen)) == count + 3


def test_peer_keeps_all_counts_that_take_turns():
    sender, receiver = PeerCounts(OwnCounts(1_200, few=3)), PeerCounts(OwnCounts(0))
    for number in range(20):
        chosen, turns, _ = sender.chosen(4, 1 << 20)
        if number != 15:  # lost
            receiver.receive("a", chosen, turns)
        if number >= 3:
            assert len(receiver._sums) == 1_203


def test_closed_connections_of_counts_in_turns_are_forgotten():
    own = OwnCounts(1_200)
    sender, receiver = PeerCounts(own), PeerCounts(OwnCounts(0))
    for _ in range(5):
        receiver.receive("a", *sender.chosen(4, 1 << 20)[:2])
    own.count = 7
    receiver.receive("a", *sender.chosen(4, 1 << 20)[:2])
    assert len(receiver._sums) == 7


def test_too_many_counts_of_peers_are_not_kept(monkeypatch):
    monkeypatch.setattr("gateway.features.sharing.peer_counts.MAX_KEPT", 1_000)
    sender, receiver = PeerCounts(OwnCounts(5_000)), PeerCounts(OwnCounts(0))
    for _ in range(50):
        receiver.receive("a", *sender.chosen(4, 1 << 20)[:2])
        assert len(receiver._sums) <= 1_000 + MAX_COUNTS
    receiver.forget("a")
    assert (receiver._sums, receiver._kept, receiver._messages) == ({}, 0, {})


def test_maximum_holds_beside_many_full_users():
    """Each gateway has more users at their maximum than a message has counts."""
    fleet = Fleet(2, listener=1_500, **{f"user-{number}": 1 for number in range(1_400)})
    for number in range(1_400):
        assert fleet.connect(number % 2, f"user-{number}", ip=f"10.0.{number % 250}.{number // 250}") is not None
    fleet.run(1.0)
    assert not any(fleet.connect((number + 1) % 2, f"user-{number}") for number in range(1_400))
    for number in range(300):
        fleet.connect(number % 2, "alice", ip="10.0.255.1")
        if number % 10 == 0:
            fleet.run(2 * INTERVAL)
    assert sum(gateway.gateway.connections for gateway in fleet.gateways) <= 1_510


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 5)))))
def test_sums_are_those_of_the_last_messages(messages):
    counts, last = PeerCounts(OwnCounts(0)), {}
    for identity, heard in messages:
        last[identity] = heard
        counts.receive(identity, {("user", name): count for name, count in heard.items()})
    wanted = {("user", name): sum(each.get(name, 0) for each in last.values()) for name in "xy"}
    assert counts._sums == {key: total for key, total in wanted.items() if total}
    for identity in "abc":
        counts.forget(identity)
    assert counts._sums == {}
