"""`ledger`: the throttle ledger, which the reports are made from."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator

from gateway.config.section import Section, TopicName, invalid

_GIB = 1 << 30


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise invalid("is not a path", 'write the folder for the ledger\'s files, such as "./throttle-ledger"')
    path = Path(value)
    try:
        is_file = path.exists() and not path.is_dir()
    except OSError as error:  # too long a name, or a folder above it that nobody may look into
        raise invalid(f"can't be looked at: {error.strerror}", "give a folder that the user who runs Weir can reach") from None
    if is_file:
        raise invalid("is a file", "give a folder; it is made if it is missing")
    return path


class LedgerConfig(Section):
    """`ledger`. Seconds, days and bytes as the names say; `gateway` is this one's name in events (default: the host's)."""

    path: Annotated[Path, PlainValidator(_path, json_schema_input_type=str), PlainSerializer(str)]
    gateway: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    topic: TopicName | None = None
    flush_seconds: Annotated[float, Field(ge=1, le=3600)] = 10.0
    rotate_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    retention_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    max_bytes: Annotated[int, Field(gt=0, le=2**63 - 1)] = 10 * _GIB
