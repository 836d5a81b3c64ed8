"""`exempt` in a row of `quotas.entities`: true, or a list of the quotas that the entity is exempt from."""

from typing import Annotated, Any, Literal

from pydantic import WrapValidator

from gateway.config.section import invalid
from gateway.quotas.entity import EXEMPTIONS, RATES


def _checked(value: object, _: object) -> bool | tuple[str, ...]:
    if value is None:
        raise invalid("is empty", "fill it in, or remove the key to get its default")
    if isinstance(value, bool):
        return value
    if not isinstance(value, list | tuple):
        raise invalid(
            "is neither true, false nor a list", f"write true for rates alone, or list some of {', '.join(EXEMPTIONS)}"
        )
    for name in value:
        if name not in EXEMPTIONS:
            raise invalid(
                f"holds {name!r}, and there is no such quota to be exempt from",
                f"list some of {', '.join(EXEMPTIONS)}; true means rates alone",
            )
    return tuple(name for name in EXEMPTIONS if name in value)


Exempt = Annotated[Any, WrapValidator(_checked, json_schema_input_type=bool | list[Literal["rates", "topics", "volumes"]])]
"""The key as it stands in the file; a list comes out as a tuple in the order of `EXEMPTIONS`."""


def exemptions(value: bool | tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return True if the entity is exempt from rates, and what the file lists, () if it lists nothing."""
    return (RATES in value, value) if isinstance(value, tuple) else (value, ())
