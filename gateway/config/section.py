"""The base of every section of the config file, the errors of its validators, and common types."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from protocol.bodies.topic_lists import is_legal_name


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, and without conversions (no "1" for 1, no 1 for true)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def filled_in(*keys: str) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra` of a section whose validator fills in `keys`: the file may omit them."""

    def unrequire(schema: dict[str, Any]) -> None:
        schema["required"] = [key for key in schema["required"] if key not in keys]

    return unrequire


def invalid(message: str, remedy: str) -> PydanticCustomError:
    """The error that a section's validator raises."""
    return PydanticCustomError("weir", "{message}", {"message": message, "remedy": remedy})


def _topic(name: str) -> str:
    if not is_legal_name(name):
        raise invalid("is not a legal name of a topic", "use letters, digits, '.', '_' and '-', at most 249")
    return name


TopicName = Annotated[str, AfterValidator(_topic)]
"""A name that Kafka accepts for a topic."""


class WindowConfig(Section):
    """`quotas.window`: Kafka's quota.window.num and quota.window.size.seconds. They set the burst too."""

    samples: Annotated[int, Field(ge=2, le=10_000)] = 11
    seconds: Annotated[int, Field(ge=1, le=86_400)] = 1
