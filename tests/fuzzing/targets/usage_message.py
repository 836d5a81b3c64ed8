"""A broker's usage message raises `BadRecordError` only, and a valid one survives a round trip."""

import json

from gateway.cluster.client import BadRecordError
from gateway.features.volume_quotas.usage_message import encode_usage, parse_broker, parse_usage
from tests.fuzzing.record_errors import check_record_error

WORDS = (
    b'"Version":1', b'"SnapshotAt":', b'"2026-11-21T03:00:00.000Z"', b'"9999-12-31T23:59:59-23:59"',
    b'"0001-01-01T00:00+23:59"',
    b'"Hard limit":', b'"softLimit":', b'"type":"MinFreeBytes"', b'"MinFreePercentage"', b'"ConsumedSpace"', b'"level":5',
    b'"Volumes":[', b'"VolumeName":"/d"', b'"Capacity":9223372036854775807', b'"Consumed":0', b"Infinity", b"1e400",
    b'"\\ud800"',
)  # fmt: skip


def check(data: bytes) -> None:
    """The key, a line end, and the value."""
    key, _, value = data.partition(b"\n")
    try:
        broker = parse_broker(key)
    except BadRecordError as error:
        check_record_error(error)
        broker = 3
    try:
        usage = parse_usage(broker, value)
    except BadRecordError as error:
        check_record_error(error)
        return
    key, value = encode_usage(usage)
    again = parse_usage(parse_broker(key), value)
    assert again.volumes == usage.volumes
    assert (again.hard, again.soft) == (usage.hard, usage.soft)
    assert abs(again.snapshot_at - usage.snapshot_at) <= 0.001
    for volume in usage.volumes:
        volume.name.encode()


def seeds():
    limits = {"Hard limit": {"type": "MinFreePercentage", "level": 5}, "Soft limit": {"type": "MinFreeBytes", "level": 15.5}}
    volume = {"VolumeName": "/data", "Capacity": 107374182400, "Consumed": 53687091200}
    message = {"Version": 1, "SnapshotAt": "2026-11-21T03:00:00.250Z", **limits, "Volumes": [volume]}
    yield b"3\n" + json.dumps(message).encode()
    yield b"2147483647\n" + json.dumps(message | {"Volumes": [volume | limits, volume | {"VolumeName": "/b"}]}).encode()
    camel = {"snapshotAt": "2026-11-21T03:00:00+01:00", "hardLimit": {"type": "ConsumedSpace", "level": 1}}
    yield b"0\n" + json.dumps({**camel, "softLimit": camel["hardLimit"], "volumes": [volume], "x": None}).encode()
