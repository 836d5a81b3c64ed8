"""`ledger`: the throttle ledger, which the reports are made from."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from gateway.config.section import Section, TopicName, described, invalid
from gateway.files.path_faults import path_fault
from gateway.whole_number import MAX_INT64

_GIB = 1 << 30

_MAX_NAME_BYTES = 200
"""The limit on `gateway` in UTF-8. The names of the ledger's files contain it, and a name may have 255 bytes."""


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise invalid("is not a path", 'write the folder for the ledger\'s files, such as "./throttle-ledger"')
    path = Path(value)
    if (fault := path_fault(path, folder=True)) is not None:
        raise invalid(*fault)
    return path


def _name(value: str) -> str:
    size = len(value.encode(errors="surrogatepass"))
    if size > _MAX_NAME_BYTES:
        raise invalid(f"has {size} bytes in UTF-8", f"use at most {_MAX_NAME_BYTES}, because it is a part of file names")
    return value


class LedgerConfig(Section):
    """`ledger`: the files of throttle events and use, for the reports."""

    path: Annotated[Path, PlainValidator(_path, json_schema_input_type=str), PlainSerializer(str)] = described(
        "Folder of the ledger's files, by date and hour; Weir creates a missing folder. A relative path starts at the working"
        " directory.",
        changes="restart",
    )
    gateway: Annotated[str, Field(min_length=1, max_length=_MAX_NAME_BYTES), AfterValidator(_name)] | None = described(
        "Name of this gateway in events.", None, changes="restart", absent="the host's name"
    )
    topic: TopicName | None = described(
        "Kafka topic to which Weir writes the events as well.", None, changes="restart", absent="files only"
    )
    flush_seconds: Annotated[float, Field(ge=1, le=3600)] = described(
        "Time between two writes to the file. Weir writes once a minute if it is longer.", 10.0, unit="seconds"
    )
    rotate_seconds: Annotated[float, Field(ge=1, le=86_400)] = described(
        "Time after which Weir begins a new file.", 300.0, unit="seconds"
    )
    retention_days: Annotated[float, Field(gt=0, le=36_500)] = described("Age at which Weir deletes a file.", 30.0, unit="days")
    max_bytes: Annotated[int, Field(gt=0, le=MAX_INT64)] = described(
        "Size of all files together; above it, Weir deletes the oldest files.", 10 * _GIB, unit="bytes"
    )
