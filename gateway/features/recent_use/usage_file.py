"""Recent usage in a file: a line of JSON that says when, and one for each bucket that is not full.

    {"version": 1, "boot": "5d0e...", "monotonic": 5021.4, "wall": 1795244400.2, "rows": 2}
    {"kind": "produce", "user": "alice", "limit": 1e6, "metering": ["token_bucket", 11, 1.0], "spent": [[0.0, 0.0, 81920.0]]}
    {"listener": "clients", "limit": 50.0, "metering": ["token_bucket", 11, 1.0], "spent": [[0.0, 0.0, 3.0]]}
    {"member": "00f1...", "sequence": 512, "told": [{"kind": "produce", "user": "alice", "total": 1048576}]}

`listener` null is the rate of the whole gateway. A `member` is another gateway that shares quotas, with the counts that it has
published and that the buckets contain. A member may have several lines. A `topic` has a line like a listener's, without a
limit; null stands for all topics together. Its `elsewhere` is the use through other gateways.

The format has lines, so that a save can make them step by step: one JSON text of 10 000 buckets would keep clients waiting. A
reader parses each line by itself.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.features.sharing.shared_usage import Entity, Known
from gateway.files.whole_file import replace_file
from gateway.quotas.engine import Metering
from gateway.quotas.entity import Tags
from gateway.quotas.meter import PastUse, Window
from gateway.quotas.recent_use import BucketUse, Moment, RecentUse, TopicSpent

VERSION = 1
MAX_BYTES = 1 << 28
"""Of a file, its header aside: longer ones are neither written nor read."""

_MAX_HEADER = 4_096

_TOLD_IN_A_LINE = 50
_TAGS = ("user", "client_id", "ip")


class BadUsageFileError(Exception):
    """The file can't be made out; the message says why."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The recent use of a gateway at a moment. `listeners` are by name, None for all of them together. `members` are the counts
    of other gateways. `damaged` counts the lines that are missing or can't be read."""

    at: Moment
    entities: tuple[BucketUse, ...] = ()
    listeners: Mapping[str | None, RecentUse] = field(default_factory=dict)
    members: tuple[Known, ...] = ()
    topics: tuple[TopicSpent, ...] = ()
    damaged: int = 0


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Header(_Saved):
    version: int
    boot: str
    monotonic: float
    wall: float
    rows: Annotated[int, Field(ge=0)]


_Metering = tuple[str, Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]
_Spent = Annotated[list[tuple[float, float, float]], Field(max_length=20_000)]


class _Row(_Saved):
    """A bucket, if it has a kind; else a listener."""

    kind: str | None = None
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    listener: str | None = None
    limit: Annotated[float, Field(gt=0)]
    metering: _Metering
    spent: Annotated[_Spent, Field(min_length=1)]

    def use(self) -> RecentUse:
        algorithm, samples, seconds = self.metering
        spent = tuple(PastUse(*each) for each in self.spent)
        return RecentUse(self.limit, Metering(algorithm, Window(samples, seconds)), spent)


class _Told(_Saved):
    """An account: by the tags of a bucket, or by a name."""

    kind: str
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    name: str | None = None
    total: Annotated[int, Field(ge=0)]

    def entity(self) -> Entity:
        return self.kind, Tags(self.user, self.client_id, ip=self.ip) if self.name is None else self.name


class _Member(_Saved):
    member: str
    sequence: Annotated[int, Field(ge=0)]
    told: list[_Told]

    def known(self) -> Known:
        return Known(self.member, self.sequence, {told.entity(): told.total for told in self.told})


class _Topic(_Saved):
    """A topic, or all of them together."""

    topic: str | None
    metering: _Metering
    spent: _Spent
    elsewhere: _Spent = []

    def use(self) -> TopicSpent:
        meter, samples, seconds = self.metering
        here, elsewhere = (tuple(PastUse(*each) for each in spent) for spent in (self.spent, self.elsewhere))
        return TopicSpent(self.topic, meter, Window(samples, seconds), here, elsewhere)


_LINE: TypeAdapter[_Row | _Member | _Topic] = TypeAdapter(_Row | _Member | _Topic)


def read_usage(path: Path) -> Usage:
    """Read the last save. Raises OSError where it can't be read, BadUsageFileError where it can't be made out."""
    if path.stat().st_size > MAX_BYTES + _MAX_HEADER:
        raise BadUsageFileError("it is too long to be Weir's")
    lines = path.read_bytes().splitlines()
    try:
        return _parse(lines)
    except ValidationError as error:
        raise BadUsageFileError(f"it is damaged: {error.errors()[0]['msg']}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BadUsageFileError(f"it is damaged: {error!s}") from None


def write_usage(path: Path, at: Moment, lines: Sequence[str]) -> None:
    """Replace the file by these `entity_line`s and `listener_line`s. Raises OSError.

    A loss of power may damage it: it is not worth a disk's attention every few seconds.
    """
    header = {"version": VERSION, "boot": at.boot, "monotonic": at.monotonic, "wall": at.wall, "rows": len(lines)}
    replace_file(path, [_line(header), *lines], durable=False)


def cut(lines: list[str]) -> int:
    """Remove the last lines, those beyond `MAX_BYTES`. Returns their number."""
    ends = list(accumulate(map(len, lines)))  # JSON in ASCII: a character is a byte
    fitting = bisect_right(ends, MAX_BYTES)
    left_out = len(lines) - fitting
    del lines[fitting:]
    return left_out


def entity_line(saved: BucketUse) -> str:
    """The line of a bucket."""
    return _line({"kind": saved.kind, **_names(saved.tags), **_use(saved.use)})


def listener_line(name: str | None, use: RecentUse) -> str:
    """The line of a listener's rate, or of the gateway's (None)."""
    return _line({"listener": name, **_use(use)})


def _parse(lines: list[bytes]) -> Usage:
    version = json.loads(lines[0] if lines else b"")["version"]
    if version != VERSION:
        raise BadUsageFileError(f"it is of version {version}, this Weir knows version {VERSION}")
    header = _Header.model_validate_json(lines[0])
    found = [each for line in lines[1:] if (each := _read(line)) is not None]
    rows = [each for each in found if isinstance(each, _Row)]
    return Usage(
        Moment(header.boot, header.monotonic, header.wall),
        tuple(BucketUse(row.kind, Tags(row.user, row.client_id, ip=row.ip), row.use()) for row in rows if row.kind is not None),
        {row.listener: row.use() for row in rows if row.kind is None},
        tuple(each.known() for each in found if isinstance(each, _Member)),
        tuple(each.use() for each in found if isinstance(each, _Topic)),
        damaged=max(header.rows, len(lines) - 1) - len(found),
    )


def _read(line: bytes) -> _Row | _Member | _Topic | None:
    try:
        return _LINE.validate_json(line)
    except ValidationError:
        return None


def topic_line(saved: TopicSpent) -> str:
    """The line of a topic."""
    metering = [saved.meter, saved.window.samples, saved.window.seconds]
    return _line({"topic": saved.name, "metering": metering, "spent": saved.here, "elsewhere": saved.elsewhere})


def member_lines(known: Known) -> Iterator[str]:
    """The lines of another member."""
    told = [{"kind": kind, **_names(name), "total": total} for (kind, name), total in known.totals.items()]
    for start in range(0, max(len(told), 1), _TOLD_IN_A_LINE):
        yield _line({"member": known.identity, "sequence": known.sequence, "told": told[start : start + _TOLD_IN_A_LINE]})


def _names(name: Tags | str) -> dict[str, str]:
    if isinstance(name, str):
        return {"name": name}
    return {part: value for part in _TAGS if (value := getattr(name, part)) is not None}


def _use(use: RecentUse) -> dict[str, Any]:
    window = use.metering.window
    return {"limit": use.limit, "metering": [use.metering.algorithm, window.samples, window.seconds], "spent": use.spent}


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"
