"""Quotas of the API beside those of the file."""

from gateway.features.client_quotas.feature import overruled
from gateway.observer import limit_changes
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota

ETL, WEB = ClientQuotaEntity(client_id="etl"), ClientQuotaEntity(client_id="web")


def test_file_changes_without_effect_are_noted() -> None:
    old = [
        EntityQuota(ETL, {"producer_byte_rate": 1e6, "consumer_byte_rate": 1e6}),
        EntityQuota(WEB, {"producer_byte_rate": 5.0}),
    ]
    new = [
        EntityQuota(ETL, {"producer_byte_rate": 3e6, "consumer_byte_rate": 1e6}),
        EntityQuota(WEB, {"producer_byte_rate": 7.0}),
    ]
    dynamic = {ETL: {"producer_byte_rate": 2_000_000.0, "consumer_byte_rate": 9.0}}
    (note,) = overruled(limit_changes(old, new), dynamic)
    assert note.startswith("client-id=etl: producer_byte_rate stays 2000000, because this value was set through the API")
    assert overruled(limit_changes(new, new), dynamic) == []
