"""Every key of the config file as the reference shows it, derived from the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from gateway.config.keys import changes_by, extra_of, fields
from gateway.config.model import WeirConfig
from gateway.config.section import ABSENT, UNIT, TakesEffect

_INTEGER_LIMITS = {2**63 - 1: "2^63 - 1", 2**31 - 1: "2^31 - 1"}
_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "section",
}
_BOUNDS = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("exclusiveMaximum", "below"))


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key as the reference shows it. `path` is such as `listeners[].tls.cert`; `unit`, `default` and `range` may be empty."""

    path: str
    name: str
    kind: str
    unit: str
    default: str
    range: str
    changes: TakesEffect
    description: str
    section: type[BaseModel] | None
    required: bool


def all_keys() -> Iterator[ConfigKey]:
    """Every key of every section, each section's keys after the section itself."""
    yield from _keys((), "", WeirConfig)


def _keys(path: tuple[str, ...], shown: str, model: type[BaseModel]) -> Iterator[ConfigKey]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    for key, field, section in fields(model):
        one = _only(schema["properties"][key])
        is_list = one.get("type") == "array" and section is not None
        here = f"{shown}{key}{'[]' if is_list else ''}"
        extra = extra_of(field)
        yield ConfigKey(
            path=here,
            name=key,
            kind=_kind(one, schema),
            unit=extra.get(UNIT, ""),
            default="required" if key in required else extra.get(ABSENT) or _default(schema["properties"][key], section),
            range=_range(one),
            changes=changes_by((*path, key)),
            description=field.description or "",
            section=section,
            required=key in required,
        )
        if section is not None:
            yield from _keys((*path, key), f"{here}.", section)


def _only(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without the alternative `null`, which only means that the key may be empty."""
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return others[0] if len(others) == 1 else schema


def _kind(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(each, root) for each in schema["anyOf"] if each.get("type") != "null")
        return "choice" if "choice" in kinds else ", or ".join(kinds)
    if "enum" in schema:
        return "choice"
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'], root)}s".replace("choices", "names").replace("texts", "text")
    if schema["type"] == "object" and "additionalProperties" in schema and "properties" not in schema:
        return f"{_kind(schema['additionalProperties'], root)} by name"
    return _TYPES[schema["type"]]


def _range(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "anyOf" in schema:
        return next((text for each in schema["anyOf"] if (text := _range(each))), "")
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, Mapping) and (text := _range(inner)):
        return text
    if "minimum" in schema and "maximum" in schema:
        found = [f"{_number(schema['minimum'])} to {_number(schema['maximum'])}"]
    else:
        found = [f"{words} {_number(schema[bound])}" for bound, words in _BOUNDS if bound in schema]
    if "maxItems" in schema:
        found.append(f"{schema.get('minItems', 0)} to {schema['maxItems']} rows")
    elif schema.get("minLength") or schema.get("minItems"):
        found.append("not empty")
    if "maxLength" in schema:
        found.append(f"at most {schema['maxLength']} characters")
    return ", ".join(found)


def _number(number: float) -> str:
    return _INTEGER_LIMITS.get(int(number)) or f"{number:.16g}"


def _default(schema: Mapping[str, Any], section: type[BaseModel] | None) -> str:
    value = schema.get("default")
    if value is None or (section is not None and value != []):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list) and value:
        return ", ".join(f"`{each}`" for each in value)
    return "none" if value in ([], {}) else f"`{value:.16g}`" if isinstance(value, float) else f"`{value}`"
