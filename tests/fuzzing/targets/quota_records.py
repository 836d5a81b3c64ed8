"""Records of the topic of quotas raise nothing, and the quotas that they make survive a round trip."""

from gateway.features.quota_api.records import SKIPPED, QuotaRecords, claim, entity_record, settled
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity

WORDS = (
    b'{"user":"alice"}', b'{"client-id":null,"user":"alice"}', b'{"ip":"10.0.0.1"}', b'{"group":"g"}', b"migration",
    b'"version":1',
    b'{"version":1,"quotas":{"producer_byte_rate":1e6}}', b'"claimed_by":null', b'"claimed_by":"0f3a"', b"1e999", b"\n\n",
    b'{"topic":"","after":null,"keys":[]}',
)  # fmt: skip


def check(data: bytes) -> None:
    """A key, a value and a header in turn, one a line; an empty value or header is none."""
    table = QuotaRecords()
    lines = data.split(b"\n")
    now = 1_000.0
    for number in range(0, len(lines) - 2, 3):
        now += 3.0
        key, value, header = lines[number : number + 3]
        reason = table.receive(key, value or None, [("change", header)] if header else [], now)
        assert reason is None or reason in SKIPPED
        table.claimant(now)
    again = QuotaRecords()
    for key, value, *headers in again.changes(table.quotas):
        assert again.receive(key, value, headers, now) is None
    assert again.quotas == table.quotas
    put = table.missing(again.quotas, 1, newer=True)
    table.repairs(put, table.history, 1)
    str(list(table.quotas)).encode()


def seeds():
    alice = ClientQuotaEntity("alice", "etl")
    records = [
        claim("0f3a"), entity_record(alice, {"producer_byte_rate": 1e6}), settled(),
        entity_record(ClientQuotaEntity(DEFAULT), {"consumer_byte_rate": 0.5}), entity_record(alice, {}),
    ]  # fmt: skip
    yield b"\n".join(part or b"" for record in records for part in (*record, b""))
    change = b'{"topic":"","after":7,"keys":["consumer_byte_rate"]}'
    yield b"\n".join(part or b"" for record in records[1:2] * 2 for part in (*record, change))
