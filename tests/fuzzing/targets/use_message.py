"""A member's message raises `BadRecordError` only, and a gateway goes on sharing after any messages."""

import json
from dataclasses import replace

from gateway.cluster.client import BadRecordError
from gateway.features.sharing.member import Member
from gateway.features.sharing.use_message import MAX_MESSAGE_BYTES, UseMessage, encode, parse, parse_member
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from tests.fuzzing.record_errors import check_record_error
from tests.gateway.quotas.engines import bucket_of, rows_of

PEERS = (b"2f6c1b7e9d034a58", b"00000000000000aa")
OWN = "ffffffffffffffff"
WORDS = (
    b'"Version":1', b'"Sequence":', b'"Entities":', b'"Connections":', b'"Turns":', b'"Demands":', b'"produce"',
    b'"fetch"', b'{"user":"alice"}', b'"Interval":5000', b'"Enforced":false',
    b'{"client_id":"etl","user":"alice"}', b'{"name":"payments"}', b'{"ip":"10.0.0.1"}', b'{"group":"jobs"}', b'"broker":"3"',
    b"9223372036854775807", b"1e999", b"NaN", b"null", b'"\\ud800"', b"true", b"\n",
)  # fmt: skip
SETTINGS = QuotaSettings((EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 100.0, "consumer_byte_rate": 50.0}),))


def check(data: bytes) -> None:
    """The messages of two peers in turn, one a line. Each line is a second later."""
    engine = QuotaEngine(SETTINGS, 1_000.0)
    member = Member(OWN, engine, 1.0, 1_000.0)
    now = 1_000.0
    bucket_of(engine, "produce", "alice", "etl", now).record(100, now)
    for number, line in enumerate(data.split(b"\n")[:20]):
        now += 1.0
        _check_message(line)
        member.receive(PEERS[number % 2], line, now)
        for key, value in member.step(now):
            assert value is not None
            assert len(value) <= MAX_MESSAGE_BYTES
            parse(value)
            member.receive(key, value, now)
        for row in rows_of(engine, now):
            json.dumps([row.user, row.client_id], ensure_ascii=False).encode()  # metrics are UTF-8
    try:
        parse_member(data[:32])
    except BadRecordError as error:
        check_record_error(error)


def _check_message(line: bytes) -> None:
    try:
        message = parse(line)
    except BadRecordError as error:
        check_record_error(error)
        return
    again = parse(encode(message))
    assert replace(again, balances={}) == replace(message, balances={}, skipped=())


def _line(sequence: int, entities: list[object], **more: object) -> bytes:
    return json.dumps({"Version": 1, "Sequence": sequence, "Entities": entities, **more}).encode()


def seeds():
    first = _line(1, [["produce", {"user": "alice", "client_id": "etl"}, 1000, 10], ["fetch", {"user": "bob"}, 5, 5]])
    second = _line(
        2,
        [["produce", {"user": "alice", "client_id": "etl"}, 9000, 8000], ["topic", {"name": "payments"}, 1, 1]],
        Connections=[["user", "alice", 12]],
        Turns=3,
        Demands=[["produce", "payments", 1048576.0], ["fetch", "x", None]],
    )
    third = _line(3, [["produce", {"user": "alice", "broker": "3"}, 1, 1], ["connection", {"ip": "10.0.0.1"}, 7, 7]])
    yield b"\n".join((first, first, second, second, third, third))
    yield encode(UseMessage(1, ()))
    yield PEERS[0]
    yield b"\n".join((first, first, _line(1, []), second))
