"""The usage message: encoding, parsing and refusals with their reasons."""

import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.client import BadRecordError
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.usage_message import (
    MAX_MESSAGE_BYTES,
    MAX_VOLUMES,
    encode_usage,
    parse_broker,
    parse_usage,
)

HARD, SOFT = Limit(LimitType.MIN_FREE_PERCENTAGE, 5.0), Limit(LimitType.MIN_FREE_PERCENTAGE, 15.5)
AT = datetime(2026, 11, 21, 3, 0, 0, 250_000, UTC).timestamp()
USAGE = VolumeUsage(3, AT, HARD, SOFT, (Volume("/data", 1000, 400), Volume("/logs", 10, 0, hard=SOFT)))
MESSAGE = {
    "Version": 1,
    "SnapshotAt": "2026-11-21T03:00:00.250Z",
    "Hard limit": {"type": "MinFreePercentage", "level": 5},
    "Soft limit": {"type": "MinFreePercentage", "level": 15.5},
    "Volumes": [
        {"VolumeName": "/data", "Capacity": 1000, "Consumed": 400},
        {
            "VolumeName": "/logs",
            "Capacity": 10,
            "Consumed": 0,
            "Hard limit": {"type": "MinFreePercentage", "level": 15.5},
        },
    ],
}


def test_usage_is_encoded_as_documented():
    key, value = encode_usage(USAGE)
    assert (key, json.loads(value)) == (b"3", MESSAGE)


def test_encoded_usage_is_read():
    assert parse_usage(3, json.dumps(MESSAGE).encode()) == USAGE


def test_other_spellings_of_the_message_are_read():
    plain = {key: value for key, value in MESSAGE.items() if key != "Version"}
    assert parse_usage(3, json.dumps(plain).encode()) == USAGE
    camel = json.dumps(plain | {"brokerId": "3", "later": [1]})
    for ours, theirs in (("Hard limit", "hardLimit"), ("Soft limit", "softLimit"), ("SnapshotAt", "snapshotAt")):
        camel = camel.replace(ours, theirs)
    assert parse_usage(3, camel.encode()) == USAGE


def changed(path, value):
    """Return the message with one value changed, or removed if `value` is None."""
    message = json.loads(json.dumps(MESSAGE))
    *parents, last = path
    section = message
    for parent in parents:
        section = section[parent]
    if value is None:
        del section[last]
    else:
        section[last] = value
    return json.dumps(message).encode()


VOLUME = ("Volumes", 0)
BAD = [
    (b"", "bad_json"),
    (b"{", "bad_json"),
    (b"\xff", "bad_json"),
    (b"[" * 100_000, "bad_json"),
    (changed(("SnapshotAt",), "x").replace(b'"x"', b"NaN"), "bad_json"),
    (changed(("Hard limit", "level"), 1).replace(b": 1}", b": Infinity}"), "bad_json"),
    (b"null", "bad_type"),
    (b"[]", "bad_type"),
    (b'"text"', "bad_type"),
    (changed(("Version",), 2), "unknown_version"),
    (changed(("Version",), "1"), "unknown_version"),
    (changed(("Version",), True), "unknown_version"),
    *((changed((key,), None), "missing_field") for key in MESSAGE if key != "Version"),
    *((changed((*VOLUME, key), None), "missing_field") for key in ("VolumeName", "Capacity", "Consumed")),
    *((changed(("Soft limit", key), None), "missing_field") for key in ("type", "level")),
    (changed(("Volumes",), []), "missing_field"),
    (changed(("Volumes",), {}), "bad_type"),
    (changed(("Volumes",), [1]), "bad_type"),
    (changed(("Volumes",), [MESSAGE["Volumes"][0]] * 2), "duplicate_volume"),
    (changed(("Volumes",), [MESSAGE["Volumes"][0]] * (MAX_VOLUMES + 1)), "too_large"),
    (changed(("x",), "x" * MAX_MESSAGE_BYTES), "too_large"),
    *((changed((*VOLUME, key), -1), "negative_number") for key in ("Capacity", "Consumed")),
    *((changed((*VOLUME, "Capacity"), value), "bad_type") for value in ("1000", 1.5, True, [])),
    (changed((*VOLUME, "Capacity"), 2**63), "bad_number"),
    (changed((*VOLUME, "Consumed"), 1001), "bad_number"),
    *((changed((*VOLUME, "VolumeName"), value), "bad_type") for value in (1, "", "x" * 5_000)),
    (changed(("Hard limit",), 5), "bad_type"),
    (changed(("Hard limit", "type"), "MaxInodes"), "unknown_limit_type"),
    (changed(("Hard limit", "type"), 1), "unknown_limit_type"),
    (changed(("Hard limit", "level"), -1), "negative_number"),
    (changed(("Hard limit", "level"), "5"), "bad_type"),
    (changed(("Hard limit", "level"), True), "bad_type"),
    (changed(("Hard limit", "level"), 100.5), "bad_number"),
    *(
        (changed(("SnapshotAt",), value), "bad_time")
        for value in (AT, "yesterday", "2026-11-21T03:00:00", "x" * 100, "0001-01-01T00:00:00+02:00")
    ),
]


@pytest.mark.parametrize(("value", "reason"), BAD)
def test_unusable_message_is_refused_with_a_reason(value, reason):
    with pytest.raises(BadRecordError) as caught:
        parse_usage(3, value)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", [None, b"", b"zero", b"-1", b"1.0", b"\xd9\xa1", b"\xff", b"2147483648", b"1" * 5_000])
def test_key_that_is_no_broker_id_is_refused(key):
    with pytest.raises(BadRecordError) as caught:
        parse_broker(key)
    assert caught.value.reason == "bad_key"


def test_key_is_a_broker_id():
    assert [parse_broker(key) for key in (b"0", b"12", b"2147483647")] == [0, 12, 2**31 - 1]


@given(st.binary())
def test_random_bytes_raise_only_bad_usage(value):
    with pytest.raises(BadRecordError):
        parse_usage(0, value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "level", "VolumeName"]), inner),
)


PLACES = [("SnapshotAt",), ("Hard limit",), ("Volumes",), ("Volumes", 0), ("Volumes", 0, "Capacity")]


@given(st.sampled_from(PLACES), json_values)
def test_random_json_raises_only_bad_usage(path, value):
    with suppress(BadRecordError):
        usage = parse_usage(3, changed(path, value))
        assert all(0 <= volume.consumed <= volume.capacity for volume in usage.volumes)
