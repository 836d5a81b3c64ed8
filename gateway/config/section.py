"""What every section of the config file is, and how its validators complain."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """What all sections are: frozen, without unknown keys, and nothing converted (no "1" for 1, no 1 for true)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def filled_in(*keys: str) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra` of a section whose validator fills in `keys`: a file may leave them out."""

    def unrequire(schema: dict[str, Any]) -> None:
        schema["required"] = [key for key in schema["required"] if key not in keys]

    return unrequire


def invalid(message: str, remedy: str) -> PydanticCustomError:
    """The error that a section's validator raises: what is wrong, and what to do about it."""
    return PydanticCustomError("weir", "{message}", {"message": message, "remedy": remedy})
