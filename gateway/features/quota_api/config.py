"""The config sections of the quota API: its administrators, and the files in which Weir keeps its state."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, TypeAdapter, WrapValidator, model_validator

from gateway.alter_queue import BROKER_ACLS, QuotaAdmins
from gateway.config.problems import nearest
from gateway.config.section import Section, described, invalid
from gateway.quotas.entity import ANONYMOUS

_USER = "User:"

NAMELESS: Final = f"{_USER}{ANONYMOUS}"
"""The principal of each client without a name."""


def _principal(text: str) -> str:
    if text == BROKER_ACLS:
        raise invalid("is not a principal, but stands for the list", f"write quota_admins: {BROKER_ACLS}, without a list")
    kind, colon, name = text.partition(":")
    if colon and kind.isalpha() and kind.lower() != "user":
        raise invalid(
            f"is a principal of the type {kind}, and Weir knows users only", f'list each user, such as "{_USER}admin"'
        )
    name = (name if colon and kind.lower() == "user" else text).strip()
    if not text.startswith(_USER) or not name:
        raise invalid("is not a principal", f'write it as Kafka does: "{_USER}{name or "admin"}"')
    if name == "*":
        raise invalid(
            "has a wildcard, and only whole names match",
            f"list each user, or write quota_admins: {BROKER_ACLS}, so that ACLs decide",
        )
    if text != _USER + name:
        raise invalid("has a space before or after the name, and no user matches it", f'write "{_USER}{name}"')
    return text


_PRINCIPALS = TypeAdapter[tuple[str, ...]](
    Annotated[tuple[Annotated[str, AfterValidator(_principal)], ...], Field(strict=False)]
)


def _admins(value: object, _: object) -> QuotaAdmins:
    if isinstance(value, list | tuple):
        return _PRINCIPALS.validate_python(value)
    if value == BROKER_ACLS:
        return BROKER_ACLS
    if value is None:
        raise invalid("is empty", "fill it in, or remove the key to get its default")
    text = value if isinstance(value, str) else ""
    if nearest(text, [BROKER_ACLS]):
        remedy = f"did you mean {BROKER_ACLS}?"
    else:
        example = text if text.startswith(_USER) and text != _USER else f"{_USER}admin"
        remedy = f'write a list of principals: ["{example}"], or {BROKER_ACLS}'
    raise invalid(f"is neither {BROKER_ACLS} nor a list", remedy)


QuotaAdminsKey = Annotated[QuotaAdmins, WrapValidator(_admins, json_schema_input_type=list[str] | Literal["broker_acls"])]
"""`quota_admins`: the clients with the right to use DescribeClientQuotas and AlterClientQuotas."""


GROUPS: Final = "groups"
TOPICS: Final = "topics"
POSITION: Final = "position"


def beside(path: Path, what: str) -> Path:
    """The path of another file of the same state: `state.topics.json` beside `state.json`."""
    return path.with_name(f"{path.stem}.{what}{path.suffix}")


class StateConfig(Section):
    """`state`: the files that Weir keeps over restarts. Relative paths start at the config file's folder."""

    path: Annotated[str, Field(min_length=1)] | None = described(
        "File with the quotas that clients set through the quota API. "
        "Thresholds of topics and quotas of groups are beside it, with the endings `.topics.json` and `.groups.json`.",
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
        """The file of recent use. Each of several workers has its own file."""
        state = self.file(config_file)
        path = state.with_name(f"{state.stem}.usage.jsonl")
        if self.usage_path is not None:
            path = config_file.parent / self.usage_path
        return path if worker is None else path.with_stem(f"{path.stem}.{worker}")

    def usage_files(self, config_file: Path, workers: int) -> list[Path]:
        """The files of all processes."""
        return [self.usage_file(config_file, worker) for worker in (range(workers) if workers > 1 else (None,))]

    def files(self, config_file: Path, workers: int) -> list[tuple[str, Path]]:
        """Each file that Weir writes, with the key of its path."""
        path = self.file(config_file)
        found = [("path", each) for each in (path, *(beside(path, what) for what in (GROUPS, TOPICS, POSITION)))]
        return found + [("usage_path", each) for each in self.usage_files(config_file, workers)]

    @model_validator(mode="after")
    def _apart(self) -> "StateConfig":
        if self.path is not None and self.usage_path is not None and Path(self.path) == Path(self.usage_path):
            raise invalid("path and usage_path name the same file", "give each a file of its own, or leave usage_path out")
        return self
