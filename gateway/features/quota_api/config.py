"""The config sections of the quota API: its administrators, and the files in which Weir keeps its state."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gateway.config.section import Section, described, invalid

_USER = "User:"


def _principal(text: str) -> str:
    if not text.startswith(_USER) or text == _USER:
        raise invalid("is not a principal", f'write it as Kafka does: "{_USER}{text.removeprefix(_USER) or "admin"}"')
    return text


QuotaAdmins = Annotated[tuple[Annotated[str, AfterValidator(_principal)], ...], Field(strict=False)]
"""`quota_admins`: the principals with the right to use DescribeClientQuotas and AlterClientQuotas, such as `User:admin`."""


class StateConfig(Section):
    """`state`: the files that Weir keeps over restarts. Relative paths start at the config file's folder."""

    path: Annotated[str, Field(min_length=1)] | None = described(
        "File with the quotas that clients set through the quota API. "
        "Thresholds of topics are beside it, with the ending `.topics.json`.",
        None,
        absent="beside the config file, with the ending `.state.json`",
    )
    usage_path: Annotated[str, Field(min_length=1)] | None = described(
        "File with recent use, so that a restart gives no free burst.",
        None,
        absent="beside `path`, with the ending `.usage.jsonl`",
    )
    usage_interval_ms: Annotated[int, Field(ge=100, le=3_600_000)] = described(
        "Time between two writes of recent use.", 2_000, unit="milliseconds"
    )

    def file(self, config_file: Path) -> Path:
        """The file with the quotas that clients set through the API."""
        if self.path is None:
            return config_file.with_name(f"{config_file.stem}.state.json")
        return config_file.parent / self.path

    def usage_file(self, config_file: Path, worker: int | None = None) -> Path:
        """The file of recent usage. Each of several workers has its own file."""
        state = self.file(config_file)
        path = state.with_name(f"{state.stem}.usage.jsonl")
        if self.usage_path is not None:
            path = config_file.parent / self.usage_path
        return path if worker is None else path.with_stem(f"{path.stem}.{worker}")

    @model_validator(mode="after")
    def _apart(self) -> "StateConfig":
        if self.path is not None and self.path == self.usage_path:
            raise invalid("path and usage_path name the same file", "give each a file of its own, or leave usage_path out")
        return self
