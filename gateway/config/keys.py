"""Every key of the config file, derived from the model: for messages, reloads, the chart and the reference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.model import WeirConfig
from gateway.config.problems import KeyPath
from gateway.config.section import ABSENT, CHANGES, UNIT, Changes

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
    changes: Changes
    description: str
    section: type[BaseModel] | None
    required: bool


def section_in(annotation: object) -> type[BaseModel] | None:
    """The model of a section, an optional section, or the items of a list of sections. None for other types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inputs = [getattr(each, "json_schema_input_type", None) for each in getattr(annotation, "__metadata__", ())]
    inner = [] if get_origin(annotation) is dict else get_args(annotation)
    return next((found for each in (*inputs, *inner) if (found := section_in(each)) is not None), None)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, type[BaseModel] | None]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field, _section_of(field)


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    """As `section_in`. A field keeps the outermost metadata of its annotation apart."""
    inputs = (getattr(each, "json_schema_input_type", None) for each in field.metadata)
    return section_in(field.annotation) or next((found for each in inputs if (found := section_in(each)) is not None), None)


def _sections(path: tuple[str, ...], model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, model
    for key, _, section in _fields(model):
        if section is not None:
            yield from _sections((*path, key), section)


SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = dict(_sections((), WeirConfig))
"""The model of each section by its path without list indexes."""


def _extra(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def changes_by(path: KeyPath) -> Changes:
    """How a change of the key at `path` takes effect."""
    found: Changes = "reload"
    model: type[BaseModel] | None = WeirConfig
    for part in path:
        if isinstance(part, int):
            continue
        field = next((field for key, field, _ in _fields(model) if key == part), None) if model is not None else None
        if field is None:  # a key of a mapping, such as an address
            break
        found = _extra(field).get(CHANGES, found)
        model = _section_of(field)
    return found


def all_keys() -> Iterator[ConfigKey]:
    """Every key of every section, each section's keys after the section itself."""
    yield from _keys((), "", WeirConfig)


def _keys(path: tuple[str, ...], shown: str, model: type[BaseModel]) -> Iterator[ConfigKey]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    for key, field, section in _fields(model):
        one = _only(schema["properties"][key])
        is_list = one.get("type") == "array" and section is not None
        here = f"{shown}{key}{'[]' if is_list else ''}"
        extra = _extra(field)
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
    if schema.get("minLength") or schema.get("minItems"):
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


def live_keys(section: str) -> list[str]:
    """The keys directly below a section of the top level, or below its items, that a reload can change."""
    return [key for key, _, _ in _fields(SECTIONS[(section,)]) if changes_by((section, key)) != "restart"]


def restart_keys() -> list[str]:
    """The shortest list of the keys that need a restart: `listeners` stands for all of its keys without an exception."""
    found = []
    for key, _, section in _fields(WeirConfig):
        if changes_by((key,)) == "restart":
            live = [] if section is None else live_keys(key)
            found.append(f"{key} (except {' and '.join(live)})" if live else key)
        elif section is not None:
            found += [f"{key}.{name}" for name, _, _ in _fields(section) if changes_by((key, name)) == "restart"]
    return found
