"""An independent codec for the tests: kafka-python's, with the messages it lacks built from data/message_specs.json."""

import importlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

DATA = Path(__file__).parent / "data"

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a deprecated way
    from kafka.protocol import api_data
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.data_container import DataContainer

    _MODULES = [importlib.import_module(f"kafka.protocol.{n}") for n in ("admin", "consumer", "metadata", "producer", "sasl")]


def _build(spec: dict[str, Any]) -> type[ApiMessage]:
    """Return a message class for a specification that kafka-python lacks."""
    with patch.object(api_data, "load_json", lambda name, package=None: spec):
        return type(ApiMessage)(spec["name"], (ApiMessage,), {"__slots__": ()})


def _load() -> dict[tuple[int, str], type[ApiMessage]]:
    found = [c for module in _MODULES for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, ApiMessage)]
    built = [_build(spec) for spec in json.loads((DATA / "message_specs.json").read_text())]
    return {(c.json["apiKey"], c.json["type"]): c for c in (*found, *built) if c is not ApiMessage}


_MESSAGES = _load()
KEYS = frozenset(key for key, _ in _MESSAGES)


def request_class(api_key: int) -> type[ApiMessage]:
    return _MESSAGES[api_key, "request"]


def response_class(api_key: int) -> type[ApiMessage]:
    return _MESSAGES[api_key, "response"]


def build(message: type[Any], version: int, values: dict[str, Any]) -> Any:
    """Return a message from plain dicts and lists, nested as its fields are. Omitted fields get their defaults."""
    built = {}
    for name, value in values.items():
        field = message.fields[name]
        if field.is_struct():
            built[name] = build(field.data_class, version, value)
        elif field.is_struct_array() and value is not None:
            built[name] = [build(field.data_class, version, each) for each in value]
        else:
            built[name] = value
    return message(version=version, **built)


def encode_request(api_key: int, version: int, values: dict[str, Any], correlation_id: int, client_id: str) -> bytes:
    """A whole request frame with its length."""
    message = build(request_class(api_key), version, values)
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(message.encode(header=True, framed=True))


def encode_response(api_key: int, version: int, values: dict[str, Any], correlation_id: int = 7) -> bytes:
    """A whole response frame with its length."""
    message = build(response_class(api_key), version, values)
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


def decode_response(api_key: int, version: int, frame: bytes) -> dict[str, Any]:
    """A whole response frame as nested dicts, its correlation id and unknown tagged fields included.

    kafka-python decodes truncated or extended frames without an error. So this function encodes the result again and compares
    the bytes, unless tagged fields that kafka-python cannot write were lost.
    """
    message = response_class(api_key).decode(frame, version=version, header=True, framed=True)
    values = {"correlation_id": message.header.correlation_id, **_as_dict(message)}
    assert bytes(message.encode(header=True, framed=True)) == frame or "unknown_tags" in repr(values)
    return values


def _as_dict(container: Any) -> dict[str, Any]:
    names = [field.name for field in container.fields.values() if field.for_version_q(container.version)]
    values = {name: _plain(getattr(container, name)) for name in names}
    return values | {"unknown_tags": container.unknown_tags} if container.unknown_tags else values


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _as_dict(value) if isinstance(value, DataContainer) else value
