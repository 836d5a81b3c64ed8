"""Shadow rates of new connections, by address and by user."""

from gateway.features.connection_quotas.rules import ConnectionLimits, ConnectionQuotas, ConnectionSlot, Refusal
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from tests.gateway.quotas.engines import rows_of

START = 1_000.0
RATE = "connection_creation_rate"


def made(*rows):
    engine = EngineWithShadows(QuotaSettings(rows), START)
    limits = ConnectionLimits(100_000, listeners={"clients": ConnectionLimits(1).gateway})
    return engine, ConnectionQuotas(engine, limits, START)


def counted(engine):
    return [(row.ip, row.user, row.amount_total, row.throttled_total) for row in rows_of(engine.shadows, START)]


def test_address_over_its_shadow_is_admitted():
    engine, quotas = made(EntityQuota(ClientQuotaEntity(ip=DEFAULT), shadow={RATE: 1}))
    for _ in range(15):
        assert isinstance(quotas.accept("clients", "10.0.0.1", START), ConnectionSlot)
    assert counted(engine) == [("10.0.0.1", "", 15, 5)]
    assert [bucket.connections for bucket in engine.shadows.buckets()] == [0]


def test_refused_connection_uses_nothing_of_the_shadow():
    engine, quotas = made(EntityQuota(ClientQuotaEntity(ip=DEFAULT), {RATE: 1}, shadow={RATE: 0.5}))
    answers = [quotas.accept("clients", "10.0.0.1", START) for _ in range(12)]
    assert [isinstance(answer, Refusal) for answer in answers] == [False] * 10 + [True] * 2
    assert counted(engine) == [("10.0.0.1", "", 10, 5)]


def test_user_over_its_shadow_neither_waits_nor_is_refused():
    engine, quotas = made(EntityQuota(ClientQuotaEntity("alice"), shadow={RATE: 1}))
    for _ in range(15):
        slot = quotas.accept("clients", "10.0.0.1", START)
        verdict = slot.identify("alice", START)
        assert (verdict.refused, verdict.delay) == (False, 0.0)
    assert counted(engine) == [("", "alice", 15, 5)]
    assert [bucket.connections for bucket in engine.shadows.buckets()] == [0]
