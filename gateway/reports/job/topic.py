"""The ledger's Kafka topic, fetched into files like a gateway's own; the report is then made of those.

Records come in batches. A batch is a file for each hour that occurs in it, named after the partition and the batch's first
offset; when all are there, a mark beside them says which offset comes next. Files from that offset on are of a batch that was
not finished: they are deleted, and it is fetched again. So nothing is missing or twice, wherever a fetch was stopped.

(Spark's own Kafka source would need jars of a fitting version on every cluster.)
"""

import asyncio
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from gateway.events import in_progress_name, partition
from gateway.reports.job.progress import Progress

_AT_ONCE = 50_000
"""Records that are held in memory before files are written."""
_NAME = re.compile(r"topic-(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)\.jsonl\.gz")


class TopicError(Exception):
    """The topic can't be fetched; says why."""


def fetch_topic(servers: str, topic: str, path: Path, properties: Path | None, tell: Progress) -> int:
    """Fetch what is new in the topic into files under `path`; returns the number of records. Raises TopicError."""
    try:
        count = asyncio.run(_fetch(servers, topic, path, client_options(properties)))
    except (KafkaError, OSError, ValueError) as error:
        raise TopicError(f"--kafka {servers}: {topic} can't be fetched: {error}") from error
    tell(f"{count:,} new records of {topic} fetched into {path}")
    return count


async def _fetch(servers: str, topic: str, path: Path, options: Mapping[str, Any]) -> int:
    partitions = await _partitions(servers, topic, options)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, **options)
    try:
        await consumer.start()
        consumer.assign(partitions)
        begin, end = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        left = {}
        for each in partitions:
            start = max(begin[each], next_offset(path, topic, each.partition))
            if start < end[each]:
                consumer.seek(each, start)
                left[each] = end[each]
            else:
                consumer.pause(each)
        count = 0
        while left:
            got = await consumer.getmany(*left, timeout_ms=1000, max_records=_AT_ONCE)
            for each, records in got.items():
                wanted = [record for record in records if record.offset < end[each]]
                count += len(wanted)
                if wanted:
                    _write(path, topic, each.partition, wanted)
            for each in list(left):
                if await consumer.position(each) >= left[each]:
                    consumer.pause(each)
                    del left[each]
        return count
    finally:
        await consumer.stop()


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


def next_offset(path: Path, topic: str, number: int) -> int:
    """The first offset of a partition that has not been fetched. Deletes what an unfinished batch has left."""
    mark = _mark(path, topic, number)
    following = int(mark.read_text()) if mark.exists() else 0
    for file in path.glob(f"date=*/hour=*/topic-*-{number}-*.jsonl.gz"):
        found = _NAME.fullmatch(file.name)
        if found is not None and found["topic"] == topic and int(found["first"]) >= following:
            file.unlink()
    return following


def _mark(path: Path, topic: str, number: int) -> Path:
    return path / f"_topic-{topic}-{number}.next"


def _write(path: Path, topic: str, number: int, records: Sequence[Any]) -> None:
    hours: dict[str, list[Any]] = defaultdict(list)
    for record in records:
        hours[_folder(record)].append(record)
    name = f"topic-{topic}-{number}-{records[0].offset:012d}.jsonl.gz"
    for folder, of_hour in hours.items():
        whole = path / folder / name
        whole.parent.mkdir(parents=True, exist_ok=True)
        unfinished = whole.with_name(in_progress_name(name))
        with gzip.open(unfinished, "wb") as file:
            file.writelines(record.value.replace(b"\n", b" ") + b"\n" for record in of_hour if record.value)
        unfinished.replace(whole)
    mark = _mark(path, topic, number)
    unfinished = mark.with_suffix(".part")
    unfinished.write_text(str(records[-1].offset + 1))
    unfinished.replace(mark)


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
