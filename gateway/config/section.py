"""What every section of the config file is, and how its validators complain."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """What all sections are: frozen, without unknown keys, and nothing converted (no "1" for 1, no 1 for true)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def invalid(message: str, remedy: str) -> PydanticCustomError:
    """The error that a section's validator raises: what is wrong, and what to do about it."""
    return PydanticCustomError("weir", "{message}", {"message": message, "remedy": remedy})
