"""The sections of the quota API: who may use it, and where what it has set is kept."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.config.section import Section, invalid

_USER = "User:"


def _principal(text: str) -> str:
    if not text.startswith(_USER) or text == _USER:
        raise invalid("is not a principal", f'write it as Kafka does: "{_USER}{text.removeprefix(_USER) or "admin"}"')
    return text


QuotaAdmins = Annotated[tuple[Annotated[str, AfterValidator(_principal)], ...], Field(strict=False)]
"""`quota_admins`: the principals who may use DescribeClientQuotas and AlterClientQuotas, such as `User:admin`."""


class StateConfig(Section):
    """`state`: what Weir itself keeps over restarts. `path` is taken from the config file's folder; None: beside that file."""

    path: Annotated[str, Field(min_length=1)] | None = None

    def file(self, config_file: Path) -> Path:
        """Where the quotas are kept that are set through the API."""
        if self.path is None:
            return config_file.with_name(f"{config_file.stem}.state.json")
        return config_file.parent / self.path
