"""The restore file of `weir quotas lift`: the brokers' quotas as they were before the lift."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.files.path_faults import file_text, new_file_fault
from gateway.files.whole_file import create_file
from gateway.migration import MigrationError
from gateway.migration.broker_quotas import BrokerQuotas, Entity, entity_of

VERSION: Final = 1
_FORMAT: Final = "weir-quotas-restore"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _Entry(_Strict):
    entity: Annotated[dict[str, str | None], Field(min_length=1)]
    quotas: Annotated[dict[str, float], Field(min_length=1)]


class RestoreFile(_Strict):
    """`lifted` are the quotas that the lift removes, `kept` the quotas that it leaves alone."""

    format: Literal["weir-quotas-restore"]
    version: int
    written_at: str
    cluster_id: str
    bootstrap_servers: Annotated[list[str], Field(min_length=1)]
    lifted: Annotated[list[_Entry], Field(min_length=1)]
    kept: list[_Entry]

    def lifted_quotas(self) -> BrokerQuotas:
        return {entity_of(entry.entity): entry.quotas for entry in self.lifted}

    def kept_quotas(self) -> BrokerQuotas:
        return {entity_of(entry.entity): entry.quotas for entry in self.kept}


def restore_file(
    cluster_id: str, bootstrap_servers: Iterable[str], lifted: BrokerQuotas, kept: BrokerQuotas, now: float
) -> RestoreFile:
    """`now` is the wall clock in seconds."""
    return RestoreFile(
        format=_FORMAT,
        version=VERSION,
        written_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        cluster_id=cluster_id,
        bootstrap_servers=list(bootstrap_servers),
        lifted=[_entry(entity, quotas) for entity, quotas in lifted.items()],
        kept=[_entry(entity, quotas) for entity, quotas in kept.items()],
    )


def _entry(entity: Entity, quotas: object) -> _Entry:
    return _Entry.model_validate({"entity": dict(entity), "quotas": quotas})


def check_new(path: Path) -> None:
    """Raises MigrationError if the file exists, or its folder can't be written to. Creates nothing."""
    check_folder(path)
    if path.is_symlink() or path.exists():
        raise _exists(path)


def check_folder(path: Path) -> None:
    """Raises MigrationError if no file of this name can be made. A file that exists may be that of an earlier lift."""
    if (fault := new_file_fault(path, "--restore-file")) is not None:
        raise MigrationError(f"{path}: {' — '.join(fault)}")


def write(path: Path, content: RestoreFile) -> None:
    """Create the file, readable by its owner only; after the return, it survives a loss of power. Raises MigrationError."""
    text = json.dumps(content.model_dump(), indent=2, ensure_ascii=False) + "\n"
    try:
        create_file(path, [text], mode=0o600, durable=True)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise MigrationError(
            f"{path}: can't be written: {error.strerror or error}; nothing has been changed at the brokers — name another file"
            " with --restore-file"
        ) from None


def read(path: Path) -> RestoreFile:
    """Raises MigrationError if the file can't be read, or is not a restore file of this version."""
    remedy = "name the file that `weir quotas lift` wrote"
    try:
        text = file_text(path)
    except OSError as error:
        raise MigrationError(f"{path}: can't be read: {error.strerror or error} — {remedy}") from None
    except UnicodeDecodeError:
        raise MigrationError(f"{path}: is not a restore file: it is not UTF-8 text — {remedy}") from None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise MigrationError(f"{path}: is not a restore file: it is not JSON — {remedy}") from None
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        raise MigrationError(f'{path}: is not a restore file: it has no "format": "{_FORMAT}" — {remedy}')
    if raw.get("version") != VERSION:
        raise MigrationError(
            f"{path}: has the version {raw.get('version')!r}, and this Weir reads {VERSION} — use the Weir that wrote it"
        )
    try:
        found = RestoreFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise MigrationError(f"{path}: is damaged at {key}: {first['msg']} — use an unchanged copy") from None
    for name, entries in (("lifted", found.lifted), ("kept", found.kept)):
        if len({entity_of(entry.entity) for entry in entries}) < len(entries):
            raise MigrationError(f"{path}: is damaged at {name}: an entity appears twice — use an unchanged copy")
    return found


def _exists(path: Path) -> MigrationError:
    return MigrationError(
        f"{path}: exists, and may be the only copy of quotas that were lifted earlier — name another with --restore-file,"
        " and keep this one"
    )
