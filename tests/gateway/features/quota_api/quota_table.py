"""The table of the quota topic's records, and any entities, for tests of both."""

from hypothesis import strategies as st

from gateway.features.quota_api.records import QuotaRecords, entity_record
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity

_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.just(DEFAULT)
ENTITIES = (
    st.builds(ClientQuotaEntity, _NAMES)
    | st.builds(ClientQuotaEntity, _NAMES, _NAMES)
    | st.builds(ClientQuotaEntity, st.none(), _NAMES)
    | st.builds(ClientQuotaEntity, ip=_NAMES)
    | st.builds(ClientQuotaEntity, topic=st.sampled_from(["payments", "orders"]))
    | st.builds(ClientQuotaEntity, group=st.sampled_from(["batch", "jobs"]))
)


def take(table, record, now=0.0):
    """Returns the reason if the table skips the record."""
    key, value, *headers = record
    return table.receive(key, value, headers, now)


def heard(*records, now=0.0, topic=""):
    table = QuotaRecords(topic=lambda: topic)
    for record in records:
        assert take(table, record, now) is None
    return table


def plain_changes(before, after):
    """The records of a change by Weir 0.2. They have no header, so they replace all quotas of an entity."""
    entities = [entity for entity in {**before, **after} if before.get(entity) != after.get(entity)]
    return [entity_record(entity, after.get(entity, {})) for entity in entities]
