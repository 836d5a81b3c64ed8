"""The history of a run: operations of clients and their outcomes, as one JSON object a line."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Outcome(StrEnum):
    """Jepsen's three outcomes. INFO: the client does not know the result."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Write:
    """A record with a value of its own. `offset` is that of the acknowledgement; `copy_of` is the value of its source."""

    partition: str
    value: str
    offset: int | None = None
    copy_of: str = ""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The writes of one transaction in the order of sending, or one record of an idempotent producer (`atomic` is False).

    `begin` and `end` are seconds since the start of the run.
    """

    process: str
    outcome: Outcome
    writes: tuple[Write, ...]
    atomic: bool = True
    error: str = ""
    begin: float = 0.0
    end: float = 0.0


Record = tuple[str, int, str]
"""Partition, offset and value."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Records that a reader got at once. `committed` means isolation.level=read_committed."""

    process: str
    committed: bool
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """A partition at the end of the run, read at the brokers. `stable` is the end for readers of committed records."""

    partition: str
    committed: tuple[tuple[int, str], ...]
    everything: tuple[tuple[int, str], ...]
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset of the copying group at the end of the run."""

    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class FaultNote:
    """A fault of the run, for the reader of the history."""

    fault: str
    target: str
    begin: float
    end: float


Entry = Transaction | Poll | Log | GroupOffset | FaultNote
_KINDS: dict[str, type[Entry]] = {kind.__name__: kind for kind in (Transaction, Poll, Log, GroupOffset, FaultNote)}


def write_history(path: Path, entries: Iterable[Entry]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps({"kind": type(entry).__name__, **asdict(entry)}) + "\n" for entry in entries)


def read_history(path: Path) -> Iterator[Entry]:
    """The entries of a file. Raises `KeyError`, `TypeError` or `ValueError` for a line that `write_history` did not write."""
    with path.open() as file:
        for line in file:
            yield entry_of(json.loads(line))


def entry_of(fields: dict[str, Any]) -> Entry:
    """The entry of a line, from its JSON object."""
    kind = _KINDS[fields.pop("kind")]
    if kind is Transaction:
        fields["outcome"] = Outcome(fields["outcome"])
        fields["writes"] = tuple(Write(**write) for write in fields["writes"])
    for key in ("records", "committed", "everything"):
        if isinstance(fields.get(key), list):
            fields[key] = tuple(tuple(record) for record in fields[key])
    return kind(**fields)
