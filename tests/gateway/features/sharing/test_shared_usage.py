"""Rates of listeners and quotas of topics that several gateways share."""

from collections.abc import Sequence

import pytest

from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.features.sharing.member import Member
from gateway.features.sharing.shared_usage import SharedUsage
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from tests.gateway.features.topic_quotas.listing import list_topics

INTERVAL = 0.2
RATE = 10
WINDOW = Window(11, 1.0)
SHORT = Window(2, 1.0)
BURST = RATE * 10


class Peers:
    """Members that share the given usages, over a topic without delay."""

    def __init__(self, engines: Sequence[QuotaEngine], uses: Sequence[SharedUsage]) -> None:
        self.now = 100.0
        self.members = [
            Member(f"{number:016x}", engine, INTERVAL, self.now, shared=(use,))
            for number, (engine, use) in enumerate(zip(engines, uses, strict=True))
        ]
        self.run(1.0)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            for record in [record for member in self.members for record in member.step(self.now)]:
                for member in self.members:
                    member.receive(*record, self.now)


def engines(count: int, window: Window = WINDOW) -> list[QuotaEngine]:
    return [QuotaEngine(QuotaSettings(window=window), 100.0, shared=True) for _ in range(count)]


class Listeners(Peers):
    """Gateways with a listener `clients`, whose rate, or that of the whole gateway, is limited."""

    def __init__(self, count: int, window: Window = WINDOW, **limits: AcceptLimits) -> None:
        made = engines(count, window)
        listeners = {"clients": limits.get("listener", AcceptLimits())}
        of_gateway = limits.get("gateway", AcceptLimits())
        self.gateways = [
            ConnectionQuotas(engine, ConnectionLimits(1_000_000, {}, of_gateway, listeners), 100.0) for engine in made
        ]
        super().__init__(made, self.gateways)

    def take(self, number: int, seconds: float) -> int:
        """Return the number of connections that one gateway accepts within `seconds`."""
        return self._take([self.gateways[number]], seconds)

    def take_at_all(self, seconds: float) -> int:
        """Return the number of connections that all gateways accept within `seconds`."""
        return self._take(self.gateways, seconds)

    def _take(self, gateways: Sequence[ConnectionQuotas], seconds: float) -> int:
        taken = 0
        for _ in range(round(seconds / INTERVAL)):
            for gateway in gateways:
                while gateway.wait("clients", self.now) == 0.0:
                    assert isinstance(gateway.accept("clients", "192.0.2.1", self.now), ConnectionSlot)
                    taken += 1
            self.run(INTERVAL)
        return taken


def test_listener_rate_is_shared_by_all_gateways() -> None:
    fleet = Listeners(2, listener=AcceptLimits(connection_creation_rate=RATE))
    burst = fleet.take(0, 3.0)
    assert burst <= BURST + 3 * RATE + 2
    assert fleet.take(1, 5.0) <= 6 * RATE + 2, "the other gateway knows of the burst"


def test_gateway_rate_is_shared_by_all_gateways() -> None:
    fleet = Listeners(2, gateway=AcceptLimits(connection_creation_rate=RATE))
    fleet.take(0, 3.0)
    assert fleet.take(1, 5.0) <= 6 * RATE + 2


@pytest.mark.parametrize("where", ["listener", "gateway"])
def test_many_gateways_keep_a_small_rate_of_connections(where: str) -> None:
    fleet = Listeners(8, **{where: AcceptLimits(connection_creation_rate=2)})
    taken = [fleet.take_at_all(1.0) for _ in range(60)]
    assert sum(taken[20:]) == pytest.approx(40 * 2, abs=8)


def test_peers_with_long_debts_leave_a_part_of_the_rate() -> None:
    """Peers may have had another limit until now."""
    fleet = Listeners(2, listener=AcceptLimits(connection_creation_rate=RATE))
    meter = fleet.gateways[0].listeners["clients"].shared_meter()
    assert meter is not None
    meter.charge_others(1_000 * RATE, fleet.now)
    assert isinstance(fleet.gateways[0].accept("clients", "192.0.2.1", fleet.now), ConnectionSlot)
    assert fleet.gateways[0].wait("clients", fleet.now) == 1.0


def test_connections_within_a_long_window_count_once() -> None:
    fleet = Listeners(2, Window(11, 10.0), listener=AcceptLimits(connection_creation_rate=RATE))
    meter = fleet.gateways[1].listeners["clients"].shared_meter()
    assert meter is not None
    for _ in range(100):
        fleet.gateways[0].accept("clients", "192.0.2.1", fleet.now)
    fleet.run(80.0)
    fleet.gateways[0].accept("clients", "192.0.2.1", fleet.now)
    fleet.run(1.0)
    assert meter.balance(fleet.now) >= meter.capacity - 1


def test_listeners_without_a_rate_publish_nothing() -> None:
    fleet = Listeners(2)
    for _ in range(10):
        fleet.gateways[0].accept("clients", "192.0.2.1", fleet.now)
    fleet.run(2.0)
    assert [member.tracked for member in fleet.members] == [0, 0]


def test_gateway_without_a_rate_ignores_shared_use() -> None:
    fleet = Listeners(2, listener=AcceptLimits(connection_creation_rate=RATE))
    fleet.gateways[1].apply(ConnectionLimits(1_000_000, {}, AcceptLimits(), {"clients": AcceptLimits()}), fleet.now)
    fleet.take(0, 2.0)
    assert fleet.gateways[1].wait("clients", fleet.now) == 0.0


class Topics(Peers):
    """Gateways with appends to topics."""

    def __init__(self, count: int, *, max_topics: int = 100, meter: str = "window", window: Window = SHORT) -> None:
        settings = TopicSettings(1_000, {"hot": 400}, meter=meter, window=window)
        self.gateways = [TopicQuotas(settings, 100.0, own=OwnTopics(), max_topics=max_topics) for _ in range(count)]
        for quotas in self.gateways:
            list_topics(quotas, {"hot": bytes(16), "cold": bytes(16)})
        super().__init__(engines(count), self.gateways)

    def append(self, number: int, topic: str, size: int) -> None:
        self.gateways[number].appended(topic.encode(), size, self.now, by_id=False)

    def rejects(self, number: int, topic: str) -> bool:
        quotas = self.gateways[number]
        return quotas.rejects(quotas.find(topic.encode(), by_id=False), self.now)


def test_topic_share_counts_appends_of_all_gateways() -> None:
    fleet = Topics(2)
    for number in (0, 1):
        fleet.append(number, "hot", 800)
        assert not fleet.rejects(number, "hot")
    fleet.run(INTERVAL)
    assert all(fleet.rejects(number, "hot") for number in (0, 1))
    assert not any(fleet.rejects(number, "cold") for number in (0, 1))


@pytest.mark.parametrize(("meter", "window"), [("one_minute", Window()), ("window", Window(11, 10.0))])
def test_appends_after_a_pause_count_once_at_peers(meter: str, window: Window) -> None:
    fleet = Topics(2, meter=meter, window=window)
    for _ in range(3):
        fleet.append(0, "hot", 60_000)
        fleet.run(6.0)
        here, there = [row.rate for quotas in fleet.gateways for row in at_once(quotas.rows(fleet.now)) if row.topic == "hot"]
        assert there == pytest.approx(here, rel=0.02)
        fleet.run(74.0)


def test_peer_appends_stay_separate_in_all_figures() -> None:
    fleet = Topics(2)
    fleet.append(0, "hot", 2_000)
    fleet.run(INTERVAL)
    (row,) = [row for row in at_once(fleet.gateways[1].rows(fleet.now)) if row.topic == "hot"]
    assert (row.appended_bytes, row.rate, row.rejected) == (0, 2_000.0, True)
    totals = fleet.gateways[1].totals(fleet.now)
    assert (totals.rate, totals.over) == (2_000.0, True)


def test_topics_over_the_limit_are_not_made_for_peers() -> None:
    fleet = Topics(2, max_topics=1)
    fleet.append(0, "hot", 100)
    fleet.append(1, "cold", 20_000)
    fleet.run(1.0)
    assert fleet.gateways[0].find(b"cold", by_id=False) is None
    assert fleet.gateways[0].over(fleet.now), "the total still counts"


def test_changed_thresholds_keep_known_use() -> None:
    fleet = Topics(2)
    fleet.append(0, "hot", 2_000)
    fleet.run(INTERVAL)
    fleet.gateways[1].apply(TopicSettings(1_500, {"hot": 400}, meter="window", window=Window(2, 1.0)), fleet.now)
    assert fleet.rejects(1, "hot")
    fleet.gateways[1].apply(TopicSettings(1_500, {"hot": 400}), fleet.now)
    assert not fleet.rejects(1, "hot"), "another meter starts anew"
