"""The rates of new connections of addresses and users, at gateways that share them over a topic that is a list."""

import pytest

from gateway.features.connection_quotas.per_user import LONGEST_WAIT_SECONDS, UserConnections
from gateway.features.sharing.member import Member
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings

INTERVAL = 0.2
BURST_SECONDS = 10
IP = "10.0.0.1"


class Fleet:
    """Gateways that have run for two seconds."""

    def __init__(self, count: int, rate: float, **settings) -> None:
        key = "connection_creation_rate"
        quotas = tuple(EntityQuota(entity, {key: rate}) for entity in (ClientQuotaEntity(ip=IP), ClientQuotaEntity("alice")))
        self.now = 1_000.0
        self.engines = [QuotaEngine(QuotaSettings(quotas, **settings), self.now, shared=True) for _ in range(count)]
        self.members = [Member(f"{place + 1:016x}", each, INTERVAL, self.now) for place, each in enumerate(self.engines)]
        self.users = [UserConnections(engine) for engine in self.engines]
        self.run(2.0)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            records = [record for member in self.members for record in member.step(self.now)]
            for record in records:
                for member in self.members:
                    member.receive(*record, self.now)

    def connects(self, place: int) -> bool:
        """True if the gateway admits a connection of the address."""
        bucket = self.engines[place].acquire_ip("connection", IP, self.now)
        assert bucket is not None
        self.engines[place].release(bucket, self.now)
        return not bucket.charge_connection(1.0, self.now)[1]


@pytest.mark.parametrize(("count", "rate"), [(8, 1.0), (12, 1.0), (12, 0.5)])
def test_address_connects_at_one_of_many_gateways(count, rate):
    """One connection counted once for each gateway is more than the whole burst."""
    fleet = Fleet(count, rate)
    admitted = []
    for _ in range(4):
        admitted.append(fleet.connects(0))
        fleet.run(2.0 / rate)
    assert admitted == [True] * 4


def test_address_gets_the_rest_of_its_burst_after_retries():
    fleet = Fleet(12, 10.0)
    admitted = 0
    for _ in range(5):
        admitted += sum(fleet.connects(0) for _ in range(100))
        fleet.run(2 * INTERVAL)
    assert 10.0 * BURST_SECONDS <= admitted <= 10.0 * (BURST_SECONDS + 2.0) + 1


@pytest.mark.parametrize(("count", "rate"), [(4, 10.0), (12, 10.0), (12, 1.0)])
def test_gateways_admit_one_connection_each_over_the_burst(count, rate):
    fleet = Fleet(count, rate)
    admitted = sum(fleet.connects(place) for _ in range(200) for place in range(count))
    assert rate * BURST_SECONDS <= admitted + count
    assert admitted <= rate * BURST_SECONDS + count
    fleet.run(1.0)
    assert not any(fleet.connects(place) for place in range(count)) or admitted < rate * (BURST_SECONDS + 1.0)


@pytest.mark.parametrize("count", [1, 12])
def test_user_is_not_refused_for_presumed_use_or_turns(count):
    fleet = Fleet(count, 1.0)
    delays = []
    for turn in range(20):
        verdict = fleet.users[turn % 3 % count].accept("alice", fleet.now)
        assert not verdict.refused
        delays.append(verdict.delay)
        fleet.run(1.2)
    assert max(delays) <= LONGEST_WAIT_SECONDS
    assert count > 1 or max(delays) == 0.0


@pytest.mark.parametrize("settings", [{}, {"algorithm": "window"}])
def test_user_is_refused_for_debt_that_peers_report(settings):
    fleet = Fleet(12, 1.0, **settings)
    for _ in range(3):
        while not fleet.users[1].accept("alice", fleet.now).refused:
            pass
        fleet.run(0.6)
    for place in (0, 5):
        refused = [fleet.users[place].accept("alice", fleet.now).refused for _ in range(4)]
        assert refused[-1], "each accepts a few at a debt of ten seconds"
