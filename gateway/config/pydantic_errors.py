"""Translates pydantic's errors into problems, each with a remedy in the words of YAML."""

import datetime
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.document import Document
from gateway.config.foreign_names import folded, foreign_name, may_hold_secret, without_value
from gateway.config.keys import SECTIONS
from gateway.config.problems import KeyPath, Problem, key_path, nearest, shown
from gateway.config.section import ABSENT

_EXAMPLES = {
    "upstream": '"upstream: {bootstrap_servers: [\\"127.0.0.1:9092\\"]}"',
    "upstream.bootstrap_servers": '["127.0.0.1:9092"]',
    "listeners": '"listeners: [{bootstrap_port: 29092}]"',
    "listeners.name": '"name: clients"',
    "listeners.bootstrap_port": '"bootstrap_port: 29092"',
    "notify.targets": '"targets: [{name: ops, url_file: webhook.url}]"',
    "notify.targets.name": '"name: ops"',
    "listeners.tls.cert": '"cert: weir.pem"',
    "listeners.tls.key": '"key: weir.key"',
}
"""Examples for the keys without a default, by their path without list indexes."""

SECRETIVE = frozenset({("upstream", "sasl"), ("notify", "targets")})
"""Sections with secrets: messages about unknown keys leave out the values."""

SECRET = frozenset({
    ("upstream", "sasl"), ("upstream", "sasl", "password_file"), ("upstream", "sasl", "token_file"),
    ("notify",), ("notify", "targets"), ("notify", "targets", "url"), ("notify", "targets", "url_file"), ("notify", "page_url"),
})  # fmt: skip
"""Keys whose values are or contain secrets, perhaps by mistake: no message shows them."""

_PER_CLIENT = "groups do not limit connections; write the key in a row of quotas.entities for "
_HINTS: Mapping[tuple[str, ...], str] = {
    ("quotas", "entities", "group"): "write a row of quotas.groups with name and match instead",
    ("quotas", "groups", "group"): "write name",
    ("quotas", "groups", "connection_creation_rate"): _PER_CLIENT + "ip or user",
    ("quotas", "groups", "max_connections"): _PER_CLIENT + "user",
}
"""The remedies for unknown keys of which another section has the same name with another meaning."""

_HIDDEN = "hidden"

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of a sane size",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
    "dict_type": "a section with keys of its own",
}
_NO_LIMIT = "no limit"
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def without_indexes(path: KeyPath) -> tuple[str, ...]:
    """The path without list indexes: `listeners[0].name` and `listeners[7].name` become the same."""
    return tuple(part for part in path if isinstance(part, str))


def known_keys(section: tuple[str, ...]) -> list[str]:
    return [field.alias or name for name, field in SECTIONS[section].model_fields.items()]


def aliases(section: tuple[str, ...]) -> dict[str, str]:
    """The keys of a section with Kafka's own spelling, such as `client-id`, by their spelling in snake_case."""
    return {folded(key): key for key in known_keys(section) if folded(key) != key}


def problems_of(error: ValidationError, document: Document) -> list[Problem]:
    # Pydantic counts only valid items, so it reports a list without valid items as too short as well.
    found = [
        (without_indexes(details["loc"]), _problem_of(details, document))
        for details in error.errors(include_url=False)
        if not (details["type"] == "too_short" and details["input"])
    ]
    return [_without_secret(each) if section in SECRET else each for section, each in found]


def _without_secret(found: Problem) -> Problem:
    """The problem without its value. A hidden text or number is named as such."""
    if found.value is None:
        return found
    return replace(found, value=None if found.value[:1] in {"[", "{"} else _HIDDEN)


def problem(document: Document, path: KeyPath, message: str, remedy: str, *, value: object = None) -> Problem:
    """A problem of the document at `path`. A value of None is not shown, and no list or section that may hold a secret."""
    text = None if value is None else shown(value)
    if text is not None and text[:1] in {"[", "{"} and may_hold_secret(text):
        text = None
    return Problem(key_path(path), message, remedy, text, document.line(path))


def _problem_of(details: ErrorDetails, document: Document) -> Problem:
    path, kind, value = details["loc"], details["type"], details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if path[-2:] == (value, "[key]"):  # Pydantic's mark of a key that is not valid itself
        path = path[:-1]
    section = without_indexes(path)
    if kind == "weir":
        return problem(document, path, context["message"], context["remedy"], value=value)
    if kind == "missing":
        example = _EXAMPLES.get(".".join(section))
        return problem(document, path, "is missing", f"add it, such as {example}" if example else "add it")
    if kind == "extra_forbidden":
        # A misspelt key may hold a password.
        shown_value = None if section[:-1] in SECRETIVE or may_hold_secret(section[-1]) else value
        return problem(document, path, *_unknown(section), value=shown_value)
    if value is None:
        example = _EXAMPLES.get(".".join(section))
        remedy = f"fill it in, such as {example}" if example else "fill it in, or remove the key to get its default"
        return problem(document, path, "is empty", remedy)
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        limit = f"{words} {context[name]:g}" if isinstance(context[name], float) else f"{words} {context[name]}"
        return problem(document, path, f"must be {limit}", f"write a number {limit}", value=value)
    if kind == "literal_error":
        return problem(document, path, "is not a choice", f"write {context['expected']}", value=value)
    if kind in {"too_short", "string_too_short"}:
        example = _EXAMPLES.get(".".join(section))
        remedy = f"fill it in, such as {example}" if example else "fill it in"
        return problem(document, path, "is empty", remedy, value=value)
    if kind == "invalid_key":
        return problem(document, path, "is not a key, because it is not text", "remove it, or put the key in quotes")
    wanted = _WANTED.get(kind)
    if wanted is None:
        return problem(document, path, f"is not valid: {details['msg']}", "correct it", value=value)
    if isinstance(value, float) and not isfinite(value) and wanted.endswith("number"):
        message = f"must be {wanted}, and {shown(value)} is {'not a number' if isnan(value) else 'infinite'}"
        without = f"; without the key, there is {_NO_LIMIT}" if _absent(section) == _NO_LIMIT else ""
        return problem(document, path, message, _rewrite(kind, value) + without, value=value)
    model = SECTIONS.get(section)
    if value is True and model is not None and not any(field.is_required() for field in model.model_fields.values()):
        return problem(document, path, f"must be {wanted}", f"write `{section[-1]}: {{}}` for its defaults", value=value)
    return problem(document, path, f"must be {wanted}, not {_kind_of(value)}", _rewrite(kind, value), value=value)


def _absent(section: tuple[str, ...]) -> object:
    """The effect of a missing key, if the key's description says it."""
    parent = SECTIONS.get(section[:-1])
    for name, field in parent.model_fields.items() if parent is not None else ():
        if section[-1] in {name, field.alias} and isinstance(field.json_schema_extra, dict):
            return field.json_schema_extra.get(ABSENT)
    return None


def _unknown(section: tuple[str, ...]) -> tuple[str, str]:
    """Message and remedy for an unknown key."""
    *parent, given = section
    key = without_value(given)
    known = known_keys(tuple(parent))
    place = f"a key of {'.'.join(parent)}" if parent else "a key of the file"
    if key != given and key in known:
        return f"is not {place}", f"write a space behind the colon: `{key}: ...`"
    for same in known:
        if folded(same) == folded(key):
            return f"is not {place}", f"did you mean {same}?"
    if found := foreign_name(key, parent[0] if parent else ""):
        return f"is not {place} but {found[0]}", found[1]
    if section in _HINTS:
        return f"is not {place}", _HINTS[section]
    if meant := nearest(key, known):
        return f"is not {place}", f"did you mean {meant}?"
    if longer := [same for same in known if folded(key).startswith(folded(same))]:
        return f"is not {place}", f"did you mean {max(longer, key=len)}?"
    homes = [_shown_path(other) for other in SECTIONS if folded(key) in map(folded, known_keys(other))]
    if homes:
        return f"is not {place}", f"it belongs under {homes[0]}"
    return f"is not {place}", f"remove it; the keys there are {', '.join(known)}"


def _shown_path(section: tuple[str, ...]) -> str:
    return ".".join(section) or "the top level"


def _kind_of(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int():
            return "a number"
        case float():
            return "a number with a fraction" if isfinite(value) else f"the number {shown(value)}"
        case str():
            return "text"
        case list():
            return "a list"
        case Mapping():
            return "a section with keys"
        case datetime.date():
            return "a date"
        case _:
            return f"a YAML {type(value).__name__}"


def _rewrite(kind: str, value: object) -> str:
    """The remedy for a value of the wrong type."""
    match _WANTED[kind], value:
        case "text", bool() | int() | float() | datetime.date():
            return "put it in quotes, so that YAML reads it as text"
        case "text", _:
            return "write one name"
        case "a list", _:
            return "write a list: [..] or one '- ' line per item"
        case "true or false", _:
            return "write true or false, without quotes"
        case "a section with keys of its own", _:
            return "write keys and values below it, indented"
        case wanted, str():
            return f"write {wanted} in plain digits, without quotes or a unit"
        case wanted, _:
            return f"write {wanted} in plain digits"
