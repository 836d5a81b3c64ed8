"""The usage message of a broker's volumes: JSON in a compacted topic with broker ids as keys.

The JSON keys are those of Strimzi's proposal (docs/decisions/017), with `Version` in addition:

    {"Version": 1, "SnapshotAt": "2026-11-21T03:00:00.000Z",
     "Hard limit": {"type": "MinFreePercentage", "level": 5}, "Soft limit": {"type": "MinFreePercentage", "level": 15},
     "Volumes": [{"VolumeName": "/var/lib/kafka", "Capacity": 107374182400, "Consumed": 53687091200}]}

A volume may have limits of its own under the same two keys. The reader accepts keys in any case, with or without the blank: the
proposal's first implementation wrote `hardLimit`. It skips unknown keys, and refuses any wrong value.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from gateway.clock import iso
from gateway.cluster.client import BadRecordError
from gateway.features.volume_quotas.limits import Limit, LimitType, LimitTypeName, Volume, VolumeUsage
from gateway.whole_number import MAX_INT32, MAX_INT64, whole_number

VERSION: Final = 1
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_VOLUMES = 1_000
"""The maximum for one broker. Real brokers have some tens."""

_MAX_NAME = 4_096
_TIME_BYTES = 64

_REASONS = {
    "missing": "missing_field",
    "too_short": "missing_field",
    "too_long": "too_large",
    "greater_than_equal": "negative_number",
    "less_than_equal": "bad_number",
    "literal_error": "unknown_limit_type",
    "bad_number": "bad_number",
    "bad_time": "bad_time",
}
"""The reason for each of pydantic's error types, `bad_type` for the types that are not here."""


def _seconds(value: object) -> float:
    """ISO 8601 with a time zone as seconds since the epoch."""
    try:
        if isinstance(value, str) and len(value) <= _TIME_BYTES and (when := datetime.fromisoformat(value)).tzinfo is not None:
            return when.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        pass
    raise PydanticCustomError("bad_time", "not an ISO 8601 time with a time zone")


_Bytes = Annotated[int, Field(ge=0, le=MAX_INT64)]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Limit(_Fields):
    type: LimitTypeName
    level: Annotated[float, Field(ge=0, le=MAX_INT64)]

    @model_validator(mode="after")
    def _percent(self) -> "_Limit":
        if self.limit().above_100_percent:
            raise PydanticCustomError("bad_number", "more than 100 percent")
        return self

    def limit(self) -> Limit:
        return Limit(LimitType(self.type), self.level)


class _Volume(_Fields):
    volumename: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    capacity: _Bytes
    consumed: _Bytes
    hardlimit: _Limit | None = None
    softlimit: _Limit | None = None

    @model_validator(mode="after")
    def _fits(self) -> "_Volume":
        if self.consumed > self.capacity:
            raise PydanticCustomError("bad_number", "more bytes consumed than the capacity")
        return self

    def volume(self) -> Volume:
        hard = None if self.hardlimit is None else self.hardlimit.limit()
        soft = None if self.softlimit is None else self.softlimit.limit()
        return Volume(self.volumename, self.capacity, self.consumed, hard, soft)


class _Message(_Fields):
    snapshotat: Annotated[float, BeforeValidator(_seconds)]
    hardlimit: _Limit
    softlimit: _Limit
    volumes: Annotated[list[_Volume], Field(min_length=1, max_length=MAX_VOLUMES)]


def encode_usage(usage: VolumeUsage) -> tuple[bytes, bytes]:
    """The record's key and value."""
    message = {
        "Version": VERSION,
        "SnapshotAt": iso(usage.snapshot_at),
        **_limit_fields(usage.hard, usage.soft),
        "Volumes": [
            {"VolumeName": each.name, "Capacity": each.capacity, "Consumed": each.consumed}
            | _limit_fields(each.hard, each.soft)
            for each in usage.volumes
        ],
    }
    return str(usage.broker).encode(), json.dumps(message, allow_nan=False).encode()


def _limit_fields(hard: Limit | None, soft: Limit | None) -> dict[str, object]:
    return {
        key: {"type": limit.type.value, "level": int(limit.level) if limit.level == int(limit.level) else limit.level}
        for key, limit in (("Hard limit", hard), ("Soft limit", soft))
        if limit is not None
    }


def parse_broker(key: bytes | None) -> int:
    """Raises BadRecordError."""
    text = (key or b"").decode("ascii", "replace")
    broker = whole_number(text)
    if broker is None or broker > MAX_INT32:
        raise BadRecordError("bad_key", f"the key {text[:40]!r} is not a broker id")
    return broker


def parse_usage(broker: int, value: bytes) -> VolumeUsage:
    """Raises BadRecordError."""
    if len(value) > MAX_MESSAGE_BYTES:
        raise BadRecordError("too_large", f"{len(value)} bytes, more than {MAX_MESSAGE_BYTES}")
    try:
        fields = json.loads(value.decode(), object_hook=_normalised, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("bad_json", f"not JSON: {error}"[:200]) from None
    version = fields.get("version", VERSION) if isinstance(fields, dict) else VERSION
    if type(version) is not int or version != VERSION:
        raise BadRecordError("unknown_version", f"Version {str(version)[:40]}, this Weir knows {VERSION}")
    try:
        message = _Message.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        absent = first["input"] is None and place
        raise BadRecordError(
            "missing_field" if absent else _REASONS.get(first["type"], "bad_type"), f"{place}: {first['msg']}"[:200]
        ) from None
    volumes = {each.volumename: each.volume() for each in message.volumes}
    if len(volumes) < len(message.volumes):
        raise BadRecordError("duplicate_volume", "two volumes have one name")
    hard, soft = message.hardlimit.limit(), message.softlimit.limit()
    return VolumeUsage(broker, message.snapshotat, hard, soft, tuple(volumes.values()))


def _normalised(fields: dict[str, object]) -> dict[str, object]:
    """The keys in lower case without blanks."""
    return {key.replace(" ", "").lower(): value for key, value in fields.items()}


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
