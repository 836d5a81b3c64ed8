"""Names that topics of Weir's own can have."""

from typing import Annotated

from pydantic import AfterValidator

from gateway.config.section import invalid
from protocol.bodies.topic_lists import is_legal_name


def _topic(name: str) -> str:
    if not is_legal_name(name):
        raise invalid("is not a name that a topic can have", "use letters, digits, '.', '_' and '-', at most 249")
    return name


TopicName = Annotated[str, AfterValidator(_topic)]
"""A name that Kafka takes for a topic."""
