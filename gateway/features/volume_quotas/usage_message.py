"""The usage message of a broker's volumes: JSON in a compacted topic with broker ids as keys.

The JSON keys are the proposal's, with `Version` in addition:

    {"Version": 1, "SnapshotAt": "2026-11-21T03:00:00.000Z",
     "Hard limit": {"type": "MinFreePercentage", "level": 5}, "Soft limit": {"type": "MinFreePercentage", "level": 15},
     "Volumes": [{"VolumeName": "/var/lib/kafka", "Capacity": 107374182400, "Consumed": 53687091200}]}

A volume may have limits of its own under the same two keys. The reader accepts keys in any case, with or without the blank: the
proposal's first implementation wrote `hardLimit`. It skips unknown keys, and refuses any wrong value.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from gateway.features.volume_quotas.limits import Limit, LimitType, Volume

VERSION = 1
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_VOLUMES = 1_000
"""Of one broker. Real brokers have some tens."""

_MAX_BROKER_ID = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MAX_NAME = 4_096
_TIME_BYTES = 64

Fields = dict[str, object]


class BadUsageMessageError(ValueError):
    """An unusable message. `reason` is a label value for a metric; the text has the details."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """A broker's volumes at `snapshot_at` (seconds since the epoch), and the broker's limits."""

    broker: int
    snapshot_at: float
    hard: Limit
    soft: Limit
    volumes: tuple[Volume, ...]


def encode_usage(usage: VolumeUsage) -> tuple[bytes, bytes]:
    """The record's key and value."""
    when = datetime.fromtimestamp(usage.snapshot_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    message: dict[str, object] = {
        "Version": VERSION,
        "SnapshotAt": when,
        "Hard limit": _limit_fields(usage.hard),
        "Soft limit": _limit_fields(usage.soft),
        "Volumes": [_volume_fields(volume) for volume in usage.volumes],
    }
    return str(usage.broker).encode(), json.dumps(message, allow_nan=False).encode()


def _limit_fields(limit: Limit) -> dict[str, object]:
    level = int(limit.level) if limit.level == int(limit.level) else limit.level
    return {"type": limit.type.value, "level": level}


def _volume_fields(volume: Volume) -> dict[str, object]:
    fields: dict[str, object] = {"VolumeName": volume.name, "Capacity": volume.capacity, "Consumed": volume.consumed}
    if volume.hard is not None:
        fields["Hard limit"] = _limit_fields(volume.hard)
    if volume.soft is not None:
        fields["Soft limit"] = _limit_fields(volume.soft)
    return fields


def parse_broker(key: bytes | None) -> int:
    """Raises BadUsageMessageError."""
    text = (key or b"").decode("ascii", "replace")
    if not text.isdigit() or len(text) > 10 or int(text) > _MAX_BROKER_ID:
        raise BadUsageMessageError("bad_key", f"the key {text[:40]!r} is not a broker id")
    return int(text)


def parse_usage(broker: int, value: bytes) -> VolumeUsage:
    """Raises BadUsageMessageError."""
    if len(value) > MAX_MESSAGE_BYTES:
        raise BadUsageMessageError("too_large", f"{len(value)} bytes, more than {MAX_MESSAGE_BYTES}")
    message = _fields(_json(value), "the message")
    version = message.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise BadUsageMessageError("unknown_version", f"Version {str(version)[:40]}, this Weir knows {VERSION}")
    volumes = _field(message, "volumes", "the message")
    if not isinstance(volumes, list):
        raise BadUsageMessageError("bad_type", "Volumes is not a list")
    if not volumes:
        raise BadUsageMessageError("missing_field", "Volumes is empty")
    if len(volumes) > MAX_VOLUMES:
        raise BadUsageMessageError("too_large", f"{len(volumes)} volumes, more than {MAX_VOLUMES}")
    return VolumeUsage(
        broker=broker,
        snapshot_at=_time(_field(message, "snapshotat", "the message")),
        hard=_limit(_field(message, "hardlimit", "the message"), "Hard limit"),
        soft=_limit(_field(message, "softlimit", "the message"), "Soft limit"),
        volumes=_volumes(volumes),
    )


def _json(value: bytes) -> object:
    def refuse(constant: str) -> object:
        raise BadUsageMessageError("bad_json", f"{constant} is not JSON")

    try:
        return json.loads(value.decode("utf-8"), parse_constant=refuse)
    except BadUsageMessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadUsageMessageError("bad_json", f"not JSON: {error}"[:200]) from None


def _volumes(items: Iterable[object]) -> tuple[Volume, ...]:
    volumes: dict[str, Volume] = {}
    for item in items:
        volume = _volume(_fields(item, "a volume"))
        if volume.name in volumes:
            raise BadUsageMessageError("duplicate_volume", f"the volume {volume.name[:80]!r} is given twice")
        volumes[volume.name] = volume
    return tuple(volumes.values())


def _volume(fields: Fields) -> Volume:
    name = _field(fields, "volumename", "a volume")
    if not isinstance(name, str) or not name or len(name) > _MAX_NAME:
        raise BadUsageMessageError("bad_type", "VolumeName is not a name")
    capacity = _bytes(_field(fields, "capacity", name), "Capacity")
    consumed = _bytes(_field(fields, "consumed", name), "Consumed")
    if consumed > capacity:
        raise BadUsageMessageError("bad_number", f"{name[:80]}: {consumed} bytes consumed of {capacity}")
    hard, soft = fields.get("hardlimit"), fields.get("softlimit")
    return Volume(
        name=name,
        capacity=capacity,
        consumed=consumed,
        hard=None if hard is None else _limit(hard, "Hard limit"),
        soft=None if soft is None else _limit(soft, "Soft limit"),
    )


def _limit(value: object, what: str) -> Limit:
    fields = _fields(value, what)
    name = _field(fields, "type", what)
    if not isinstance(name, str) or name not in list(LimitType):
        raise BadUsageMessageError("unknown_limit_type", f"{what}: {str(name)[:40]} is not one of {', '.join(LimitType)}")
    level = _field(fields, "level", what)
    if isinstance(level, bool) or not isinstance(level, int | float) or not isfinite(level):
        raise BadUsageMessageError("bad_type", f"{what}: level is not a number")
    if level < 0:
        raise BadUsageMessageError("negative_number", f"{what}: level {level}")
    if level > (100 if name == LimitType.MIN_FREE_PERCENTAGE else _MAX_INT64):
        raise BadUsageMessageError("bad_number", f"{what}: level {level:g}")
    return Limit(LimitType(name), float(level))


def _bytes(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadUsageMessageError("bad_type", f"{what} is not a whole number")
    if value < 0:
        raise BadUsageMessageError("negative_number", f"{what} {value}")
    if value > _MAX_INT64:
        raise BadUsageMessageError("bad_number", f"{what} does not fit 64 bits")
    return value


def _time(value: object) -> float:
    """ISO 8601 as seconds since the epoch."""
    if not isinstance(value, str) or len(value) > _TIME_BYTES:
        raise BadUsageMessageError("bad_time", "SnapshotAt is not an ISO 8601 time")
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise BadUsageMessageError("bad_time", f"SnapshotAt {value!r} is not an ISO 8601 time") from None
    if when.tzinfo is None:
        raise BadUsageMessageError("bad_time", f"SnapshotAt {value!r} has no time zone")
    try:
        return when.astimezone(UTC).timestamp()
    except OverflowError:
        raise BadUsageMessageError("bad_time", f"SnapshotAt {value!r} is out of range") from None


def _fields(value: object, what: str) -> Fields:
    """A JSON object by its keys in lower case without blanks."""
    if not isinstance(value, dict):
        raise BadUsageMessageError("bad_type", f"{what} is not an object")
    return {str(key).replace(" ", "").lower(): item for key, item in value.items()}


def _field(fields: Fields, key: str, what: str) -> object:
    value = fields.get(key)
    if value is None:
        raise BadUsageMessageError("missing_field", f"{what[:80]} has no {key}")
    return value
