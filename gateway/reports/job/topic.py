"""Fetches the ledger's Kafka topic into files like a gateway's own. The report then reads these files.

Records come in batches. Each batch makes one file for each hour in it, named after the partition and the batch's first
offset. After all files of a batch, a mark beside them stores the next offset. If a fetch stops within a batch, the next
fetch deletes the files from the mark's offset on, and fetches the batch again. Lines that a gateway sent twice
(`LINE_HEADER`) are kept once. So no line is missing or repeated, wherever a fetch stopped.

The mark also stores the time of the last record before the next offset. In a topic that was deleted and created again, that
record has another time, or is missing.

(Spark's own Kafka source would need jars of a matching version on every cluster.)
"""

import asyncio
import gzip
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.helpers import create_ssl_context

from gateway.events import LINE_HEADER
from gateway.files.java_properties import properties_of
from gateway.files.path_faults import file_text
from gateway.ledger_paths import in_progress_name, partition
from gateway.reports.job.messages import InUseError, only_run

_AT_ONCE = 50_000
"""The limit on records in memory before files are written."""
_SOURCES = 1_000
"""The mark stores the last line number of at most this many sources. A source is one start of a gateway."""
_LINE = re.compile(rb"(?P<source>\w+)-(?P<number>\d{1,18})")
_NAME = re.compile(r"topic-(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)\.jsonl\.gz")


class TopicError(Exception):
    """The topic can't be fetched. The message has the reason."""


def fetch_topic(servers: str, topic: str, path: Path, properties: Path | None, progress: Callable[[str], None]) -> int:
    """Fetch the topic's new records into files under `path`; returns their number. Raises `TopicError`.

    Calls `progress` with one line at a time.
    """
    _check_no_gateway_writes(path)
    try:
        options = client_options(properties)
    except OSError as error:
        # Without a name, the error comes from a certificate.
        name = error.filename or properties
        raise TopicError(
            f"--kafka-properties {name}: can't be read: {error.strerror or error}; name a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise TopicError(f"--kafka-properties {properties}: is not UTF-8 text; name a file of key=value lines") from error
    except ValueError as error:
        raise TopicError(f"--kafka-properties {properties}: {error}") from error
    try:
        with ExitStack() as held:
            with _on_disk(path):
                held.enter_context(only_run("--events", path))
            count = asyncio.run(_fetch(servers, topic, path, options, progress))
    except InUseError as error:
        raise TopicError(str(error)) from error
    except (KafkaError, OSError, ValueError) as error:
        reason = "no broker answers" if isinstance(error, KafkaConnectionError) else error
        remedy = "check --kafka and --kafka-properties"
        raise TopicError(f"--kafka {servers}: {topic} can't be fetched: {reason}; {remedy}") from error
    progress(f"{count:,} new records of {topic} fetched into {path}")
    return count


async def _fetch(servers: str, topic: str, path: Path, options: Mapping[str, Any], progress: Callable[[str], None]) -> int:
    partitions = await _partitions(servers, topic, options)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="none", **options)
    try:
        await consumer.start()
        begin, end = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        marks = {each: load_mark(path, topic, each.partition) for each in partitions}
        starts = {each: _start(mark, begin[each], end[each], progress) for each, mark in marks.items()}
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


def _start(mark: "Mark", begin: int, end: int, progress: Callable[[str], None]) -> int:
    """The first offset to read: one before the mark, to check that the topic is still the same."""
    if mark.following > end:
        raise mark.of_another_topic(f"the topic ends at offset {end}")
    if mark.last_ms is not None and begin > mark.following:
        lost = f"{begin - mark.following:,} records of {mark.name}-{mark.number}"
        progress(f"{lost} are lost: the topic's retention deleted them before this report could fetch them")
    return max(begin, mark.following - 1 if mark.last_ms is not None else mark.following)


async def _partitions(servers: str, topic: str, options: Mapping[str, Any]) -> Sequence[TopicPartition]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers, **options)
    try:
        await _start_quietly(admin)
        # Describes all topics, because a broker may create a topic that a client asks for by name.
        for found in await admin.describe_topics():
            if found["topic"] == topic:
                return sorted(TopicPartition(topic, each["partition"]) for each in found["partitions"])
    finally:
        await admin.close()
    raise TopicError(f"the topic {topic} does not exist; check `ledger.topic` in weir.yaml, and give its name to --topic")


async def _start_quietly(admin: AIOKafkaAdminClient) -> None:
    """Connect. aiokafka logs each server that does not answer; the error says so once."""
    log = logging.getLogger("aiokafka")
    log.disabled = True
    try:
        await admin.start()
    finally:
        log.disabled = False


@dataclass(slots=True)
class Mark:
    """The fetch position of a partition, stored in `path`.

    `following` is the next offset. `last_ms` is the time of the record before it, or None before the first fetch. `lines`
    maps each source in `LINE_HEADER` to its last line number, the latest source last.
    """

    path: Path
    name: str
    number: int
    following: int = 0
    last_ms: int | None = None
    lines: dict[str, int] = field(default_factory=dict)

    def write(self, records: Sequence[Any]) -> int:
        """Write a batch of records to files and advance the mark; returns the number of new records. Raises `TopicError`."""
        for record in records:
            if record.offset == self.following - 1 and record.timestamp != self.last_ms:
                raise self.of_another_topic("the record before it is another one")
        records = [record for record in records if record.offset >= self.following]
        if not records:
            return 0
        hours: dict[str, list[bytes]] = defaultdict(list)
        new = [record for record in records if self._is_new(record)]
        for record in new:
            if record.value:
                hours[_folder(record)].append(record.value.replace(b"\n", b" ") + b"\n")
        name = f"topic-{self.name}-{self.number}-{records[0].offset:012d}.jsonl.gz"
        with _on_disk(self.path.parent):
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
        return TopicError(
            f"{self.path} says that offset {self.following} of {self.name}-{self.number} comes next, but {why}: the topic "
            "was deleted and created again. Give --events another folder, or move this mark and the files "
            f"topic-{self.name}-* away"
        )

    def _is_new(self, record: Any) -> bool:  # noqa: ANN401 - aiokafka has no types
        """False for a line that its gateway sent again."""
        found = _LINE.fullmatch(dict(record.headers).get(LINE_HEADER) or b"")
        if found is None:
            return True
        source, number = found["source"].decode(), int(found["number"])
        last = self.lines.pop(source, 0)
        self.lines[source] = max(last, number)
        return number > last


def _check_no_gateway_writes(path: Path) -> None:
    """The report would count each line of such a gateway twice. Raises `TopicError`."""
    with _on_disk(path):
        found = next(path.glob("date=*/hour=*/weir-*"), None)
    if found is not None:
        raise TopicError(
            f"--events {path}: has a gateway's own file {found.name}, whose lines the topic may have as well, and they would"
            " count twice; give --events a folder for the topic alone, or leave out --kafka"
        )


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """Tell errors of this machine's disk apart from those of Kafka. Raises `TopicError`."""
    try:
        yield
    except OSError as error:
        remedy = "free space, or name a folder in which this user may read and write"
        raise TopicError(f"--events {path}: the topic's lines can't be stored ({error}); {remedy}") from error


def load_mark(path: Path, topic: str, number: int) -> Mark:
    """Load a partition's mark and delete the files of an unfinished batch. Raises `TopicError`."""
    mark = Mark(path / f"_topic-{topic}-{number}.next", topic, number)
    with _on_disk(path):
        if mark.path.exists():
            text = mark.path.read_text(errors="replace")
            try:
                found = json.loads(text)
                mark.following, mark.last_ms, mark.lines = found["next"], found["last_ms"], found["lines"]
            except (ValueError, TypeError, KeyError) as error:
                raise TopicError(
                    f"{mark.path} is not a valid mark: {text[:80]!r}. Move it and the files topic-{topic}-{number}-* away, and "
                    "the next run fetches all records of the topic again"
                ) from error
        for file in path.glob(f"date=*/hour=*/topic-*-{number}-*.jsonl.gz"):
            name = _NAME.fullmatch(file.name)
            if name is not None and name["topic"] == topic and int(name["first"]) >= mark.following:
                file.unlink()
    return mark


def _folder(record: Any) -> str:  # noqa: ANN401 - aiokafka has no types
    """The folder of the event's time. A record without one goes by its own time, and the report counts it as a bad line."""
    try:
        return partition(json.loads(record.value)["time_ms"])
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return partition(record.timestamp)


def client_options(properties: Path | None) -> Mapping[str, Any]:
    """aiokafka's options from a file in Java's format with Kafka's client keys.

    Raises `ValueError` with the line of an unknown key.
    """
    options: dict[str, Any] = {}
    if properties is None:
        return options
    files: dict[str, str] = {}
    for each in properties_of(file_text(properties)):
        if each.key in _TLS:
            files[_TLS[each.key]] = each.value
        elif each.key in _OPTIONS:
            options[_OPTIONS[each.key]] = each.value
        else:
            raise ValueError(f"{each.shown} is not supported; use {', '.join((*_OPTIONS, *_TLS))}")
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
