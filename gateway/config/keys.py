"""The sections of the config file and the effect of a changed key, derived from the model."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.model import WeirConfig
from gateway.config.problems import KeyPath
from gateway.config.section import CHANGES, TakesEffect


def section_in(annotation: object) -> type[BaseModel] | None:
    """The model of a section, an optional section, or the items of a list of sections. None for other types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inputs = [getattr(each, "json_schema_input_type", None) for each in getattr(annotation, "__metadata__", ())]
    inner = [] if get_origin(annotation) is dict else get_args(annotation)
    return next((found for each in (*inputs, *inner) if (found := section_in(each)) is not None), None)


def fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, type[BaseModel] | None]]:
    """The keys of a section as the file has them, with the section of each key that is one."""
    for name, field in model.model_fields.items():
        yield field.alias or name, field, _section_of(field)


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    """As `section_in`. A field keeps the outermost metadata of its annotation apart."""
    inputs = (getattr(each, "json_schema_input_type", None) for each in field.metadata)
    return section_in(field.annotation) or next((found for each in inputs if (found := section_in(each)) is not None), None)


def _sections(path: tuple[str, ...], model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, model
    for key, _, section in fields(model):
        if section is not None:
            yield from _sections((*path, key), section)


SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = dict(_sections((), WeirConfig))
"""The model of each section by its path without list indexes."""


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """The further keywords of `described`."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def changes_by(path: KeyPath) -> TakesEffect:
    """The way in which a change of the key at `path` takes effect."""
    found: TakesEffect = "reload"
    model: type[BaseModel] | None = WeirConfig
    for part in path:
        if isinstance(part, int):
            continue
        field = next((field for key, field, _ in fields(model) if key == part), None) if model is not None else None
        if field is None:  # a key of a mapping, such as an address
            break
        found = extra_of(field).get(CHANGES, found)
        model = _section_of(field)
    return found


def live_keys(section: str) -> list[str]:
    """The keys directly below a section of the top level, or below its items, that a reload can change."""
    return [key for key, _, _ in fields(SECTIONS[(section,)]) if changes_by((section, key)) != "restart"]


def restart_keys() -> list[str]:
    """The shortest list of the keys that need a restart: `listeners` stands for all of its keys without an exception."""
    found = []
    for key, _, section in fields(WeirConfig):
        if changes_by((key,)) == "restart":
            live = [] if section is None else live_keys(key)
            found.append(f"{key} (except {' and '.join(live)})" if live else key)
        elif section is not None:
            found += [f"{key}.{name}" for name, _, _ in fields(section) if changes_by((key, name)) == "restart"]
    return found
