"""The kind `request_rate`: the requests that it charges, and the meter of its buckets."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.kinds import KINDS, request_kinds
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.quotas.engines import bucket_of

NOW = 1_000.0
FREE = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


@pytest.mark.parametrize("api", ApiKey, ids=lambda api: api.name)
def test_every_request_costs_one_but_those_before_authentication(api):
    kind = KINDS["request_rate"]
    assert (kind in request_kinds(api)) == (api not in FREE)
    assert (kind.charge.per_message, kind.charge.per_byte) == (1, 0)


ENTITIES = {
    "user": ClientQuotaEntity("alice"),
    "client-id": ClientQuotaEntity(None, "app"),
    "both": ClientQuotaEntity("alice", "app"),
    "default user": ClientQuotaEntity(DEFAULT),
    "default client-id": ClientQuotaEntity(None, DEFAULT),
}


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
@pytest.mark.parametrize("entity", ENTITIES.values(), ids=ENTITIES)
def test_bucket_holds_a_burst_of_the_quota_window(entity, algorithm):
    quota = EntityQuota(entity, {"request_rate": 5.0})
    engine = QuotaEngine(QuotaSettings((quota,), algorithm=algorithm, window=Window(5, 1.0)), NOW)
    bucket = bucket_of(engine, "request_rate", "alice", "app", NOW)
    assert bucket.charge(20, NOW) == (0.0, False)
    assert bucket.charge(1, NOW) == (pytest.approx(0.2), True)
    assert bucket.charge(1, NOW + 0.4) == (0.0, False)
