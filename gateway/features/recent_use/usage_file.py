"""The file of recent use: a header with the time of the save, and a line of JSON for each bucket that is not full.

    {"version": 1, "boot": "5d0e...", "monotonic": 5021.4, "wall": 1795244400.2, "rows": 2}
    {"kind": "produce", "user": "alice", "limit": 1e6, "metering": ["token_bucket", 11, 1.0], "spent": [[0.0, 0.0, 81920.0]]}
    {"listener": "clients", "limit": 50.0, "metering": ["token_bucket", 11, 1.0], "spent": [[0.0, 0.0, 3.0]]}
    {"member": "00f1...", "sequence": 512, "told": [{"kind": "produce", "user": "alice", "total": 1048576}]}

The `listener` null is the whole gateway. A `member` is a peer that shares quotas; its lines have the totals that the buckets
contain. A `topic` has a line like a listener, but no limit; the topic null stands for all topics together. `elsewhere` is the
topic's use through peers.

Weir 0.2 refuses a line with a `group` or a `broker`, and fails at totals of a kind that it does not know. So these totals have
lines of their own, and those of such a kind have `"group": null` at least.

A save makes the lines in batches, because one JSON text of 10 000 buckets would block the event loop.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.config.section import MAX_SAMPLE_SECONDS, MAX_SAMPLES
from gateway.files.whole_file import replace_file
from gateway.quotas.entity import TAG_NAMES, Tags
from gateway.quotas.meter import PastUse, Window
from gateway.quotas.recent_use import BucketUse, Moment, PeerTotals, RecentUse, TopicRateUse
from gateway.quotas.settings import Metering
from gateway.quotas.shared_meter import UsageKey
from gateway.whole_number import MAX_INT64

VERSION = 1
MAX_BYTES = 1 << 28
"""The maximum size without the header. Weir neither writes nor reads a longer file."""

_MAX_HEADER = 4_096

_TOTALS_PER_LINE = 50
_KINDS_OF_0_2: Final = frozenset(
    ("produce", "fetch", "controller_mutation", "request_rate", "connection", "listener", "gateway", "topic", "topics")
)
_MAX_NUMBER = 1e30
"""No saved number is larger: the longest burst of the largest quota has 8e27 units. The arithmetic of meters stays finite."""


class BadUsageFileError(Exception):
    """The file is damaged, too long, or of another version."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The recent use of a gateway at the time of the save.

    `listeners` are by name, None for the whole gateway. `damaged` counts lines that are missing or unreadable.
    """

    at: Moment
    entities: tuple[BucketUse, ...] = ()
    listeners: Mapping[str | None, RecentUse] = field(default_factory=dict)
    peers: tuple[PeerTotals, ...] = ()
    topics: tuple[TopicRateUse, ...] = ()
    damaged: int = 0


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Header(_Saved):
    version: int
    boot: str
    monotonic: float
    wall: float
    rows: Annotated[int, Field(ge=0)]


_Count = Annotated[int, Field(ge=0, le=MAX_INT64)]
_Number = Annotated[float, Field(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Metering = tuple[str, Annotated[int, Field(ge=1, le=MAX_SAMPLES)], Annotated[float, Field(gt=0, le=MAX_SAMPLE_SECONDS)]]
_Spent = Annotated[list[tuple[_Number, _Number, _Number]], Field(max_length=20_000)]


class _Tagged(_Saved):
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None
    broker: int | None = None

    def tags(self) -> Tags:
        return Tags(self.user, self.client_id, ip=self.ip, group=self.group, broker=self.broker)


class _Row(_Tagged):
    """A bucket, or a listener if it has no kind."""

    kind: str | None = None
    listener: str | None = None
    limit: Annotated[float, Field(gt=0, le=_MAX_NUMBER)]
    metering: _Metering
    spent: Annotated[_Spent, Field(min_length=1)]

    def use(self) -> RecentUse:
        algorithm, samples, seconds = self.metering
        spent = tuple(PastUse(*each) for each in self.spent)
        return RecentUse(self.limit, Metering(algorithm, Window(samples, seconds)), spent)


class _Total(_Tagged):
    """The total of one account. The account has either tags or a name."""

    kind: str
    name: str | None = None
    total: _Count

    def key(self) -> UsageKey:
        if self.name is not None:
            return self.kind, self.name
        return self.kind, self.tags()


class _Member(_Saved):
    member: str
    sequence: _Count
    told: list[_Total]

    def totals(self) -> PeerTotals:
        return PeerTotals(self.member, self.sequence, {each.key(): each.total for each in self.told})


class _Topic(_Saved):
    topic: str | None
    metering: _Metering
    spent: _Spent
    elsewhere: _Spent = []
    broker: int | None = None

    def use(self) -> TopicRateUse:
        meter, samples, seconds = self.metering
        here, elsewhere = (tuple(PastUse(*each) for each in spent) for spent in (self.spent, self.elsewhere))
        return TopicRateUse(self.topic, meter, Window(samples, seconds), here, elsewhere, self.broker)


_LINE: TypeAdapter[_Row | _Member | _Topic] = TypeAdapter(_Row | _Member | _Topic)


def read_usage(path: Path) -> Usage:
    """Raises OSError or BadUsageFileError."""
    if path.stat().st_size > MAX_BYTES + _MAX_HEADER:
        raise BadUsageFileError(f"it has more than {MAX_BYTES} bytes")
    lines = path.read_bytes().splitlines()
    try:
        return _parse(lines)
    except ValidationError as error:
        raise BadUsageFileError(f"it is damaged: {error.errors()[0]['msg']}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadUsageFileError(f"it is damaged: {error!s}") from None


def saved_at(path: Path) -> float | None:
    """The wall time of the save, in seconds; None if there is no file, or if `read_usage` would refuse its header."""
    try:
        with path.open("rb") as file:
            header = _Header.model_validate_json(file.readline(_MAX_HEADER))
    except (OSError, ValidationError):
        return None
    return header.wall if header.version == VERSION else None


def write_usage(path: Path, at: Moment, lines: Sequence[str]) -> None:
    """Replace the file. Raises OSError. A power failure may damage the file: a sync every few seconds costs too much."""
    header = {"version": VERSION, "boot": at.boot, "monotonic": at.monotonic, "wall": at.wall, "rows": len(lines)}
    replace_file(path, [_line(header), *lines], durable=False)


def drop_excess(lines: list[str]) -> int:
    """Remove the last lines, so that the file has at most `MAX_BYTES`. Returns the number of removed lines."""
    ends = list(accumulate(map(len, lines)))  # JSON in ASCII: a character is a byte
    fitting = bisect_right(ends, MAX_BYTES)
    left_out = len(lines) - fitting
    del lines[fitting:]
    return left_out


def entity_line(saved: BucketUse) -> str:
    return _line({"kind": saved.kind, **_names(saved.tags), **_use(saved.use)})


def listener_line(name: str | None, use: RecentUse) -> str:
    """`name` is None for the whole gateway."""
    return _line({"listener": name, **_use(use)})


def _parse(lines: list[bytes]) -> Usage:
    version = json.loads(lines[0] if lines else b"")["version"]
    if version != VERSION:
        raise BadUsageFileError(f"it has version {version}, this Weir reads version {VERSION}")
    header = _Header.model_validate_json(lines[0])
    found: list[_Row | _Member | _Topic] = []
    for line in lines[1:]:
        with suppress(ValidationError):
            found.append(_LINE.validate_json(line))
    rows = [each for each in found if isinstance(each, _Row)]
    return Usage(
        Moment(header.boot, header.monotonic, header.wall),
        tuple(BucketUse(row.kind, row.tags(), row.use()) for row in rows if row.kind is not None),
        {row.listener: row.use() for row in rows if row.kind is None},
        tuple(each.totals() for each in found if isinstance(each, _Member)),
        tuple(each.use() for each in found if isinstance(each, _Topic)),
        damaged=max(header.rows, len(lines) - 1) - len(found),
    )


def topic_line(saved: TopicRateUse) -> str:
    metering = [saved.meter, saved.window.samples, saved.window.seconds]
    broker = {} if saved.broker is None else {"broker": saved.broker}
    return _line({"topic": saved.name, "metering": metering, "spent": saved.here, "elsewhere": saved.elsewhere, **broker})


def peer_lines(peer: PeerTotals) -> Iterator[str]:
    every: list[dict[str, str | int | None]] = [
        {"kind": kind, **({} if kind in _KINDS_OF_0_2 else {"group": None}), **_names(name), "total": total}
        for (kind, name), total in peer.totals.items()
    ]
    newer = [each for each in every if "group" in each or "broker" in each]
    older = [each for each in every if "group" not in each and "broker" not in each]
    for totals in [part for part in (older, newer) if part] or [[]]:
        for start in range(0, max(len(totals), 1), _TOTALS_PER_LINE):
            yield _line({"member": peer.identity, "sequence": peer.sequence, "told": totals[start : start + _TOTALS_PER_LINE]})


def _names(name: Tags | str) -> dict[str, str | int]:
    if isinstance(name, str):
        return {"name": name}
    return {part: value for part in TAG_NAMES if (value := getattr(name, part)) is not None}


def _use(use: RecentUse) -> dict[str, Any]:
    window = use.metering.window
    return {"limit": use.limit, "metering": [use.metering.algorithm, window.samples, window.seconds], "spent": use.used}


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"
