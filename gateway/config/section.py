"""The base of every section of the config file, the errors of its validators, and common types."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from protocol.bodies.topic_lists import MAX_NAME_BYTES, is_legal_name


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, and without conversions (no "1" for 1, no 1 for true)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


TakesEffect = Literal["reload", "restart", "agent"]
"""A changed key takes effect by a reload, by a restart (a reload refuses the file), or by a restart of the agent."""

CHANGES, UNIT, ABSENT = "x-changes", "x-unit", "x-absent"
"""Further keywords in the JSON schema of a key: `TakesEffect`, the unit, and the effect of a missing key."""


def described(
    description: str,
    default: Any = ...,  # noqa: ANN401 - as in pydantic's Field
    *,
    unit: str | None = None,
    changes: TakesEffect | None = None,
    absent: str | None = None,
    alias: str | None = None,
) -> Any:  # noqa: ANN401
    """A key of a section, with the words of the reference.

    `changes`: None takes it from the section above; at the top it is `reload`. `absent`: the effect of a missing key, if the
    default alone does not say it.
    """
    extra = {name: value for name, value in ((CHANGES, changes), (UNIT, unit), (ABSENT, absent)) if value is not None}
    return Field(default, description=description, alias=alias, json_schema_extra=dict(extra) or None)


def filled_in(*keys: str) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra` of a section whose validator fills in `keys`: the file may omit them."""

    def unrequire(schema: dict[str, Any]) -> None:
        schema["required"] = [key for key in schema["required"] if key not in keys]

    return unrequire


def invalid(message: str, remedy: str) -> PydanticCustomError:
    """The error that a section's validator raises."""
    return PydanticCustomError("weir", "{message}", {"message": message, "remedy": remedy})


def given(remedy: str) -> BeforeValidator:
    """Refuses an empty value."""

    def check(value: object) -> object:
        # None would silently widen a row, or make it permanent, so it is not the same as an absent key.
        if value is None or value in ("", {}, []):
            raise invalid("is empty", remedy)
        return value

    return BeforeValidator(check)


GIVEN: Final = given("fill it in, or remove the key")

Text = Annotated[str, Field(min_length=1)]


def _topic(name: str) -> str:
    if not is_legal_name(name):
        raise invalid("is not a legal name of a topic", f"use letters, digits, '.', '_' and '-', at most {MAX_NAME_BYTES}")
    return name


TopicName = Annotated[str, AfterValidator(_topic)]
"""A name that Kafka accepts for a topic."""


MAX_SAMPLES: Final = 10_000
MAX_SAMPLE_SECONDS: Final = 86_400


class WindowConfig(Section):
    """`quotas.window`: Kafka's quota.window.num and quota.window.size.seconds. They set the burst too."""

    samples: Annotated[int, Field(ge=2, le=MAX_SAMPLES)] = described(
        "Number of samples (Kafka: `quota.window.num`).", 11, unit="samples"
    )
    seconds: Annotated[int, Field(ge=1, le=MAX_SAMPLE_SECONDS)] = described(
        "Length of one sample (Kafka: `quota.window.size.seconds`).", 1, unit="seconds"
    )
