"""The ledger's Kafka topic, fetched into files like a gateway's own; the report is then made of those.

Records come in batches. A batch is a file for each hour that occurs in it, named after the partition and the batch's first
offset; when all are there, a mark beside them says which offset comes next. Files from that offset on are of a batch that was
not finished: they are deleted, and it is fetched again. Lines that a gateway has sent twice (`LINE_HEADER`) are taken once. So
nothing is missing or twice, wherever a fetch was stopped.

The mark also has the time of the last record before it: a topic that was deleted and made again has another one there, or none.

(Spark's own Kafka source would need jars of a fitting version on every cluster.)
"""

import asyncio
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from gateway.events import LINE_HEADER, in_progress_name, partition
from gateway.reports.job.progress import Progress

_AT_ONCE = 50_000
"""Records that are held in memory before files are written."""
_SOURCES = 1_000
"""Starts of gateways of which the last line's number is remembered."""
_LINE = re.compile(rb"(?P<source>\w+)-(?P<number>\d{1,18})")
_NAME = re.compile(r"topic-(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)\.jsonl\.gz")


class TopicError(Exception):
    """The topic can't be fetched; says why."""


def fetch_topic(servers: str, topic: str, path: Path, properties: Path | None, tell: Progress) -> int:
    """Fetch what is new in the topic into files under `path`; returns the number of records. Raises TopicError."""
    try:
        options = client_options(properties)
    except (OSError, ValueError) as error:
        raise TopicError(f"--kafka-properties {properties}: {error}") from error
    try:
        count = asyncio.run(_fetch(servers, topic, path, options, tell))
    except (KafkaError, OSError, ValueError) as error:
        raise TopicError(f"--kafka {servers}: {topic} can't be fetched: {error}") from error
    tell(f"{count:,} new records of {topic} fetched into {path}")
    return count


async def _fetch(servers: str, topic: str, path: Path, options: Mapping[str, Any], tell: Progress) -> int:
    partitions = await _partitions(servers, topic, options)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="none", **options)
    try:
        await consumer.start()
        begin, end = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        marks = {each: take_up(path, topic, each.partition) for each in partitions}
        starts = {each: _start(mark, begin[each], end[each], tell) for each, mark in marks.items()}
        left = [each for each in partitions if starts[each] < end[each]]
        consumer.assign(left)
        for each in left:
            consumer.seek(each, starts[each])
        count = 0
        while left:
            got = await consumer.getmany(*left, timeout_ms=1000, max_records=_AT_ONCE)
            for each, records in got.items():
                count += marks[each].write([record for record in records if record.offset < end[each]])
            for each in list(left):
                if await consumer.position(each) >= end[each]:
                    consumer.pause(each)
                    left.remove(each)
        return count
    finally:
        await consumer.stop()


def _start(mark: "Mark", begin: int, end: int, tell: Progress) -> int:
    """Where to begin to read: one before the mark, so that it can be seen whether the topic is still the same one."""
    if mark.following > end:
        raise mark.of_another_topic(f"the topic ends at offset {end}")
    if mark.last_ms is not None and begin > mark.following:
        lost = f"{begin - mark.following:,} records of {mark.name}-{mark.number}"
        tell(f"{lost} are lost: the topic's retention was faster than this report")
    return max(begin, mark.following - 1 if mark.last_ms is not None else mark.following)


async def _partitions(servers: str, topic: str, options: Mapping[str, Any]) -> Sequence[TopicPartition]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers, **options)
    try:
        await admin.start()
        # Of all topics: a broker may create one that is asked for by name.
        for found in await admin.describe_topics():
            if found["topic"] == topic:
                return sorted(TopicPartition(topic, each["partition"]) for each in found["partitions"])
    finally:
        await admin.close()
    raise TopicError(f"there is no topic {topic}; is `ledger.topic` set in weir.yaml, and is --topic its name?")


@dataclass(slots=True)
class Mark:
    """How far a partition has been fetched, on disk in `path`. `last_ms` is the time of the record before `following`, None
    where nothing was fetched yet; `lines` the last line's number of each source in `LINE_HEADER`, the latest source last.
    """

    path: Path
    name: str
    number: int
    following: int = 0
    last_ms: int | None = None
    lines: dict[str, int] = field(default_factory=dict)

    def write(self, records: Sequence[Any]) -> int:
        """Keep a batch of records in files, then go on behind it; returns how many records were new. Raises TopicError."""
        for record in records:
            if record.offset == self.following - 1 and record.timestamp != self.last_ms:
                raise self.of_another_topic("another record stands before that")
        records = [record for record in records if record.offset >= self.following]
        if not records:
            return 0
        hours: dict[str, list[bytes]] = defaultdict(list)
        new = [record for record in records if self._is_new(record)]
        for record in new:
            if record.value:
                hours[_folder(record)].append(record.value.replace(b"\n", b" ") + b"\n")
        name = f"topic-{self.name}-{self.number}-{records[0].offset:012d}.jsonl.gz"
        for folder, lines in hours.items():
            whole = self.path.parent / folder / name
            whole.parent.mkdir(parents=True, exist_ok=True)
            unfinished = whole.with_name(in_progress_name(name))
            with gzip.open(unfinished, "wb") as file:
                file.writelines(lines)
            unfinished.replace(whole)
        self.following, self.last_ms = records[-1].offset + 1, records[-1].timestamp
        for source in list(self.lines)[:-_SOURCES]:
            del self.lines[source]
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps({"next": self.following, "last_ms": self.last_ms, "lines": self.lines}))
        unfinished.replace(self.path)
        return len(new)

    def of_another_topic(self, why: str) -> TopicError:
        """What to say where the mark does not belong to the topic."""
        return TopicError(
            f"{self.path} says that offset {self.following} of {self.name}-{self.number} comes next, but {why}: the topic "
            "has been deleted and made again. Give --events another folder, or move this mark and the files "
            f"topic-{self.name}-* away"
        )

    def _is_new(self, record: Any) -> bool:  # noqa: ANN401 - aiokafka has no types
        """Whether it is no line that was sent again."""
        found = _LINE.fullmatch(dict(record.headers).get(LINE_HEADER) or b"")
        if found is None:
            return True
        source, number = found["source"].decode(), int(found["number"])
        last = self.lines.pop(source, 0)
        self.lines[source] = max(last, number)
        return number > last


def take_up(path: Path, topic: str, number: int) -> Mark:
    """How far a partition has been fetched. Deletes what an unfinished batch has left. Raises TopicError."""
    mark = Mark(path / f"_topic-{topic}-{number}.next", topic, number)
    if mark.path.exists():
        text = mark.path.read_text()
        try:
            found = json.loads(text)
            mark.following, mark.last_ms, mark.lines = found["next"], found["last_ms"], found["lines"]
        except (ValueError, TypeError, KeyError) as error:
            raise TopicError(
                f"{mark.path} is no mark: {text[:80]!r}. Move it and the files topic-{topic}-{number}-* away: all that "
                "the topic still has is fetched again"
            ) from error
    for file in path.glob(f"date=*/hour=*/topic-*-{number}-*.jsonl.gz"):
        name = _NAME.fullmatch(file.name)
        if name is not None and name["topic"] == topic and int(name["first"]) >= mark.following:
            file.unlink()
    return mark


def _folder(record: Any) -> str:  # noqa: ANN401 - aiokafka has no types
    """By the event's time; by the record's where there is none, so that the report counts it as a bad line."""
    try:
        return partition(json.loads(record.value)["time_ms"])
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return partition(record.timestamp)


def client_options(properties: Path | None) -> Mapping[str, Any]:
    """aiokafka's options from a file of `key=value` lines with Kafka's client keys. Raises ValueError naming the key."""
    options: dict[str, Any] = {}
    if properties is None:
        return options
    files: dict[str, str] = {}
    for number, line in enumerate(properties.read_text().splitlines(), 1):
        key, separator, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        if not separator or (key not in _OPTIONS and key not in _TLS):
            raise ValueError(f"{properties}:{number}: {key} is none of {', '.join((*_OPTIONS, *_TLS))}")
        if key in _TLS:
            files[_TLS[key]] = value
        else:
            options[_OPTIONS[key]] = value
    if "SSL" in options.get("security_protocol", ""):
        options["ssl_context"] = create_ssl_context(**files)
    return options


_OPTIONS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_TLS = {
    "ssl.ca.location": "cafile",
    "ssl.certificate.location": "certfile",
    "ssl.key.location": "keyfile",
    "ssl.key.password": "password",
}
