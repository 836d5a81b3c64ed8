"""The table of the quota topic's records, for tests of both."""

from gateway.features.quota_api.records import QuotaRecords, entity_record


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
