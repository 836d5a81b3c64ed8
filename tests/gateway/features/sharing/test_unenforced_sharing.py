"""Shadow limits and unenforced quotas that gateways share: each throttle counts once, at whichever gateway it is counted."""

from dataclasses import replace

import pytest

from gateway.features.sharing.member import Member
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from tests.gateway.quotas.engines import bucket_of
from tests.gateway.quotas.grouped import grouped

LIMIT = 1_000.0
INTERVAL = 0.2
STEP = 0.02
ALICE = ClientQuotaEntity("alice")
SHADOW = QuotaSettings((EntityQuota(ALICE, {"producer_byte_rate": 1e9}, shadow={"producer_byte_rate": LIMIT}),))
UNENFORCED = QuotaSettings((EntityQuota(ALICE, {"producer_byte_rate": LIMIT}),), enforce=False)
MB8 = 8_000_000.0
TREE = (
    Group("all", (), {"producer_byte_rate": MB8}),
    Group("people", (GroupRule(user="alice"),), {}, parent="all", weights={"producer_byte_rate": 1.0}),
)


class UnenforcedFleet:
    """Gateways without delays between them."""

    def __init__(self, count: int, settings: QuotaSettings) -> None:
        self.now = 100.0
        self.engines = [EngineWithShadows(settings, self.now, shared=True) for _ in range(count)]
        self.members = [
            Member(f"{number + 1:016x}", engine, INTERVAL, self.now, shared=[engine.shadows])
            for number, engine in enumerate(self.engines)
        ]
        self.paths = [engine.acquire_path("produce", "alice", "c", self.now) for engine in self.engines]

    @property
    def buckets(self) -> list[Bucket]:
        """The bucket of the limit that nobody waits for is the last one."""
        return [path[-1] for path in self.paths]

    def run(self, seconds: float, rates: list[float], pause: float = STEP) -> None:
        """Each gateway's client sends so many bytes a second, in requests `pause` seconds apart."""
        for step in range(1, round(seconds / STEP) + 1):
            self.now += STEP
            for path, rate in zip(self.paths, rates, strict=True):
                for bucket in path if rate and step % round(pause / STEP) == 0 else ():
                    assert bucket.charge(round(rate * pause), self.now)[1] is False
            if step % round(INTERVAL / STEP) == 0:
                records = [record for member in self.members for record in member.step(self.now)]
                for member in self.members:
                    for record in records:
                        member.receive(*record, self.now)
            if step % round(1.0 / STEP) == 0:
                for engine in self.engines:
                    engine.tick(self.now)


@pytest.mark.parametrize("settings", [SHADOW, replace(SHADOW, algorithm="window"), UNENFORCED])
@pytest.mark.parametrize("rates", [[3_000.0, 3_000.0], [800.0, 800.0], [5_000.0, 500.0], [3_000.0, 0.0], [600.0, 600.0, 600.0]])
def test_throttle_time_of_all_gateways_is_that_of_one(rates: list[float], settings: QuotaSettings) -> None:
    fleet, single = UnenforcedFleet(len(rates), settings), UnenforcedFleet(1, settings)
    figures = []
    for seconds in (30.0, 30.0):
        fleet.run(seconds, rates)
        single.run(seconds, [sum(rates)])
        figures.append((sum(each.throttle_seconds_total for each in fleet.buckets), single.buckets[0].throttle_seconds_total))
    (before, alone_before), (after, alone_after) = figures
    assert after - before == pytest.approx(alone_after - alone_before, rel=0.06)
    if settings.algorithm == "token_bucket":  # a window also stops for whole samples
        assert alone_after - alone_before == pytest.approx(30.0 * (sum(rates) / LIMIT - 1.0), rel=0.06)


def test_slow_requests_of_a_group_in_a_tree_are_counted() -> None:
    """The requests are further apart than the divisions of the tree."""
    settings = grouped(TREE, enforce=False)
    fleet = UnenforcedFleet(4, settings)
    fleet.run(40.0, [MB8 / 2] * 4, 0.5)
    assert sum(bucket.throttle_seconds_total for bucket in fleet.buckets) == pytest.approx(40.0, rel=0.15)


def test_each_gateway_shows_the_clusters_use_of_a_shadow() -> None:
    fleet = UnenforcedFleet(2, SHADOW)
    fleet.run(20.0, [3_000.0, 1_000.0])
    assert [bucket.used_ratio(fleet.now) for bucket in fleet.buckets] == pytest.approx([4.0, 4.0], rel=0.05)
    assert [bucket.rate(fleet.now) for bucket in fleet.buckets] == pytest.approx([3_000.0, 1_000.0], rel=0.05)


@pytest.mark.parametrize("settings", [SHADOW, UNENFORCED])
def test_use_within_a_shared_limit_counts_no_throttle(settings: QuotaSettings) -> None:
    fleet = UnenforcedFleet(2, settings)
    fleet.run(30.0, [450.0, 450.0])
    assert [bucket.throttled_total for bucket in fleet.buckets] == [0, 0]


@pytest.mark.parametrize("settings", [SHADOW, UNENFORCED])
def test_client_that_moves_counts_no_throttle_of_the_past(settings: QuotaSettings) -> None:
    fleet = UnenforcedFleet(2, settings)
    fleet.run(60.0, [3_000.0, 0.0])
    fleet.run(1.0, [0.0, 3_000.0])
    assert fleet.buckets[1].throttle_seconds_total <= 2.0


def test_unenforced_quotas_presume_no_use_of_peers() -> None:
    fleet = UnenforcedFleet(4, UNENFORCED)
    fleet.run(1.0, [100.0] * 4)
    new = bucket_of(fleet.engines[0], "produce", "alice", "another", fleet.now)
    meters = [bucket.shared_meter() for bucket in (*fleet.buckets, new)]
    assert [meter and meter.presumed for meter in meters] == [0.0] * 5
    assert [meter and meter.share for meter in meters] == [1.0] * 5


def test_peers_are_presumed_once_quotas_are_enforced() -> None:
    fleet = UnenforcedFleet(4, UNENFORCED)
    fleet.run(1.0, [0.0] * 4)
    for engine in fleet.engines:
        engine.apply(replace(UNENFORCED, enforce=True), fleet.now)
    fleet.run(INTERVAL, [0.0] * 4)
    meters = [bucket.shared_meter() for bucket in fleet.buckets]
    assert [meter and meter.share for meter in meters] == [0.25] * 4
