"""Names that topics of Weir's own can have."""

from typing import Annotated

from pydantic import AfterValidator

from gateway.config.section import invalid

_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST = 249


def _topic(name: str) -> str:
    if not name or len(name) > _LONGEST or not set(name) <= _CHARACTERS or name in {".", ".."}:
        raise invalid("is not a name that a topic can have", f"use letters, digits, '.', '_' and '-', at most {_LONGEST}")
    return name


TopicName = Annotated[str, AfterValidator(_topic)]
"""A name that Kafka takes for a topic."""
