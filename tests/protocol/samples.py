"""Generated messages of any kind and version, with every field filled."""

import random
import struct
import uuid
from typing import Any

from tests.protocol import codec

_INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def response_values(api_key: int, version: int, rng: random.Random) -> dict[str, Any]:
    """Values for `codec.encode_response`."""
    message = codec.response_class(api_key)
    return _struct(message.json["fields"], message.fields, version, rng)


def response_frame(api_key: int, version: int, rng: random.Random, **values: Any) -> bytes:
    """Return a whole frame. `values` replace generated values."""
    return codec.encode_response(api_key, version, response_values(api_key, version, rng) | values)


def with_length(body: bytes) -> bytes:
    """Return a frame of `body`, which follows the length."""
    return struct.pack(">i", len(body)) + body


def with_header_tag(frame: bytes) -> bytes:
    """Add an unknown tagged field of 3 bytes to a response frame whose header has no tagged fields."""
    assert frame[8] == 0
    return with_length(frame[4:8] + b"\x01\x63\x03abc" + frame[9:])


def _struct(specs: list[dict[str, Any]], fields: Any, version: int, rng: random.Random) -> dict[str, Any]:
    by_name = dict(zip((spec["name"] for spec in specs), fields.values(), strict=True))
    present = [spec for spec in specs if by_name[spec["name"]].for_version_q(version)]
    return {by_name[spec["name"]].name: _value(spec, by_name[spec["name"]], version, rng) for spec in present}


def _value(spec: dict[str, Any], field: Any, version: int, rng: random.Random) -> Any:
    kind = spec["type"]
    if kind.startswith("[]"):
        count = rng.choice((0, 1, 2, 3, 130 if kind[2:] in _INT_BITS else 2))
        element = spec | {"type": kind[2:]}
        return [_value(element, field, version, rng) for _ in range(count)]
    if spec.get("fields"):
        return _struct(spec["fields"], field.data_class.fields, version, rng)
    return _plain(kind, rng)


def _plain(kind: str, rng: random.Random) -> Any:
    if kind in _INT_BITS:
        half = 1 << _INT_BITS[kind] - 1
        return rng.choice((rng.randrange(-half, half), 0, 1))
    if kind == "uint16":
        return rng.randrange(1 << 16)
    if kind == "string":
        return "ä" * rng.choice((0, 1, 5, 63, 64, 200))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 126, 127, 128, 300)))
    if kind == "bitfield":  # a type of kafka-python's own: the numbers of the set bits
        return {rng.randrange(1, 12), 3}
    return {"bool": rng.random() < 0.5, "float64": rng.random(), "uuid": uuid.UUID(int=rng.getrandbits(128))}[kind]
