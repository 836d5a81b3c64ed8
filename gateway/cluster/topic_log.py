"""A compacted topic that Weir uses as a table: the last value of each key.

Weir creates a missing topic, and reads a topic from its beginning. `on_record` gets every record, oldest first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from aiokafka.partitioner import murmur2
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest

from gateway import clock
from gateway.cluster.client import ClusterError, MissingTopicError, NotAuthorizedError, answer_of, check_error
from gateway.cluster.log_status import LinkStatus, LogStatus
from gateway.cluster.metadata import REFRESH_SECONDS, ClusterLook, OwnClient, TopicLook
from gateway.cluster.record_batches import NO_TIMESTAMP, BatchReader, Headers, ReadRecord, Record, batches_of, whole_batches
from gateway.cluster.topic_spec import COMPACT, POLICY, TopicSpec, usual_replicas
from protocol.error_codes import ErrorCode

LEADER_SECONDS = 5.0
"""The maximum time to wait for a leader of each partition."""

MAX_AGE_SECONDS = REFRESH_SECONDS + 1.0
"""The reader takes its topic's id and leaders from the metadata loop. If the answer is older, the reader asks again."""

RETRY_SECONDS = 1.0
POLICY_RETRY_SECONDS = 60.0
MAX_REPLICAS = 3

BROKERS_SECONDS = 30.0
"""The time to wait for the brokers of all replicas. Weir may start together with the cluster."""

TURN_SECONDS = 0.002
"""After this time with records, the reader lets the event loop serve clients."""

_FETCH_WAIT_MS = 500
_FETCH_BYTES = 8 * 1024 * 1024
_PRODUCE_TIMEOUT_MS = 5_000
_EARLIEST, _LATEST = -2, -1
_ALL_REPLICAS = -1

_log = logging.getLogger("weir.cluster")


@dataclass(frozen=True, slots=True)
class Written:
    """The topic that records were appended to, and the offset behind the last record, by partition."""

    topic_id: bytes
    ends: Mapping[int, int]


class TopicLog:
    """Reads with `run` and writes with `publish`, over connections of its own.

    `on_new_topic` is called after the topic was deleted and created again, or has lost its newest records. All records are
    read again then. `topic_id` is None until the topic has been read.
    """

    def __init__(
        self,
        connect: Callable[[], OwnClient],
        spec: TopicSpec,
        on_record: Callable[[bytes | None, bytes | None, Headers], None],
        on_new_topic: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.pause = 0.0  # seconds between two fetches, so that each reads more records
        self.status = LogStatus()
        self._reading = connect()
        self._writing = connect()
        self._on_record = on_record
        self._on_new_topic = on_new_topic
        self.topic_id: bytes | None = None
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._write_leaders: TopicLook | None = None
        self._create_from = inf  # monotonic seconds; infinite while the topic exists
        self._policy_check_at = 0.0  # infinite once the policy is known
        self._looked = asyncio.Event()

    @property
    def offset(self) -> int:
        """The number of offsets behind the reader, of all partitions. A topic that was created again begins at 0."""
        return sum(self._positions.values())

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                try:
                    await self._follow()
                except ClusterError as error:
                    self._failed(self.status.reader, "read", error)
                    self.status.interrupted |= not isinstance(error, MissingTopicError)
                await self._reading.close()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._reading.close()

    async def publish(self, records: Iterable[Record], *, look: bool = False, known_topic: bool = False) -> Written:
        """Append records with acks=all. Returns their offsets for `read_up_to`.

        With `look`, Weir first checks the topic's id, because this version of Produce has no topic ids. Raises ClusterError;
        the brokers may have appended some of the records then. With `known_topic`, the topic must be the one that Weir reads.
        """
        records = list(records)
        if look:
            self._write_leaders = None
        try:
            written = await self._twice(lambda: self._publish(records, known_topic=known_topic))
        except ClusterError as error:
            self._write_leaders = None
            self.status.publication_errors_total += 1
            self._failed(self.status.publisher, "written", error)
            raise
        self.status.published_total += len(records)
        self.status.published_at = clock.monotonic()
        self._worked(self.status.publisher, "written")
        return written

    async def end(self) -> Written:
        """The offsets behind all records that any gateway has published so far, for `read_up_to`. Raises ClusterError."""
        self._write_leaders = None
        return await self._twice(self._end)

    async def looked(self) -> None:
        """Return after the next fetch, even if it had no records."""
        await self._looked.wait()

    async def read_up_to(self, written: Written) -> None:
        """Return after `on_record` has got all records before these offsets.

        The caller needs a timeout: if the topic is deleted first, this call never returns.
        """
        while not self._has_read(written):
            await self.looked()

    def _has_read(self, written: Written) -> bool:
        if written.topic_id != self.topic_id:  # the reader still has the id of a deleted topic
            return False
        return all(self._positions.get(partition, 0) >= end for partition, end in written.ends.items())

    async def close(self) -> None:
        """Close the writer's connections. `run` closes the reader's."""
        await self._writing.close()

    async def _follow(self) -> None:
        max_age = 0.0  # after a failure there may be other leaders
        while True:
            topic, max_age = await self._ensure(self._reading, max_age), MAX_AGE_SECONDS
            await self._adopt(topic)
            await self._fetch(topic.leaders)
            self._worked(self.status.reader, "read")
            await asyncio.sleep(0.0 if self.status.behind else self.pause)

    async def _adopt(self, topic: TopicLook) -> None:
        if topic.topic_id != self.topic_id:
            if self.topic_id is not None:
                _log.warning("topic %s has been deleted and created again; Weir reads it from its beginning", self.spec.name)
                self._on_new_topic()
            self.topic_id = topic.topic_id
            self._read_from_beginning()
        for partition in range(len(topic.leaders)):
            self._positions.setdefault(partition, 0)

    def _read_from_beginning(self) -> None:
        self._positions, self._ends, self._behind = {}, {}, {}
        self.status.caught_up = False
        self._write_leaders = None

    async def _fetch(self, leaders: tuple[int, ...]) -> None:
        by_leader: dict[int, list[int]] = {}
        for partition, leader in enumerate(leaders):
            by_leader.setdefault(leader, []).append(partition)
        # One leader after the other: Weir's own topics have one partition, unless an operator created them.
        for leader, partitions in by_leader.items():
            await self._fetch_from(leader, partitions, _FETCH_WAIT_MS // len(by_leader))
        if not self.status.caught_up and all(self._positions[p] >= self._ends.get(p, 1 << 63) for p in self._positions):
            self.status.caught_up = True
        self.status.interrupted &= bool(self.status.behind)
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    async def _fetch_from(self, leader: int, partitions: list[int], wait_ms: int) -> None:
        wanted = [(partition, self._positions[partition], _FETCH_BYTES) for partition in partitions]
        response = await self._reading.ask(leader, FetchRequest(wait_ms, 1, _FETCH_BYTES, 0, [(self.spec.name, wanted)]))
        with answer_of("Fetch"):
            for _, answers in response.topics:
                for partition, code, high_watermark, *_, records in answers:
                    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        await self._find_records(leader, partition)
                        continue
                    check_error(code, f"{self.spec.name}-{partition}")
                    await self._read(partition, records)
                    self._ends.setdefault(partition, high_watermark)
                    self._behind[partition] = max(0, high_watermark - self._positions[partition])
        self.status.behind = sum(self._behind.values())

    async def _find_records(self, leader: int, partition: int) -> None:
        """Go to the oldest record if those before it are deleted. Raises ClusterError if the newest records are lost."""
        position, end = self._positions[partition], await self._offset(self._reading, leader, partition, _LATEST)
        if end < position:  # an unclean election, or a new disk: the lost records are void, as those of a deleted topic
            self._on_new_topic()
            self._read_from_beginning()
            raise self._lost(partition, end, position)
        self._positions[partition] = await self._offset(self._reading, leader, partition, _EARLIEST)

    async def _offset(self, client: OwnClient, leader: int, partition: int, which: int) -> int:
        response = await client.ask(leader, OffsetRequest(-1, 0, [(self.spec.name, [(partition, which)])]))
        with answer_of("ListOffsets"):
            ((_, ((_, code, *_, offset),)),) = response.topics
            check_error(code, f"{self.spec.name}-{partition}")
            return int(offset)

    async def _read(self, partition: int, data: bytes | None) -> None:
        """Pass records to `on_record`. Raises ClusterError if the start of the next batch can't be found."""
        if not data:
            return
        begin = self._positions[partition]
        batches = whole_batches(data)
        turn_ends = clock.monotonic() + TURN_SECONDS
        while True:
            position = self._positions[partition]
            try:
                batch = next(batches, None)
            except Exception as error:
                raise self._unreadable(partition, position, error) from error
            if batch is None:
                break
            for record in self._records(partition, position, batch):
                if record is not None:
                    self.status.records_total += 1
                    self._take(*record)
                if clock.monotonic() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = clock.monotonic() + TURN_SECONDS
            self._positions[partition] = max(position, batch.next_offset)
        if self._positions[partition] == begin:
            raise self._unreadable(partition, begin, "no whole batch starts there")

    def _take(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        try:
            self._on_record(key, value, headers)
        except Exception:  # otherwise this record would stop every gateway at each start
            _log.exception(
                "topic %s: the record with the key %r can't be used, a bug in Weir", self.spec.name, (key or b"")[:100],
                extra={"reason": f"record of {self.spec.name}"},
            )  # fmt: skip

    def _records(self, partition: int, position: int, batch: BatchReader) -> Iterator[ReadRecord | None]:
        """A batch's records from the position on, and None at its end. Logs and skips the unreadable rest of a batch."""
        try:
            yield from batch.records(position)
        except Exception as error:  # aiokafka, the codec's library and Python raise different exceptions
            self.status.unreadable_batches_total += 1
            _log.warning(
                "topic %s: the batch of records at offset %d of partition %d can't be read: %s — "
                "only Weir's user should write there: docs/reference/acls.md",
                self.spec.name, position, partition, str(error) or type(error).__name__,
                extra={"reason": f"unreadable batch of {self.spec.name}"},
            )  # fmt: skip
        yield None

    def _unreadable(self, partition: int, position: int, why: object) -> ClusterError:
        remedy = "if this persists, delete the topic: Weir creates it again"
        text = f"{self.spec.name}-{partition}: the batch at offset {position} can't be read: {why} — {remedy}"
        return ClusterError(text, "unreadable batch")

    def _lost(self, partition: int, begin: int, end: int) -> ClusterError:
        text = f"{self.spec.name}-{partition}: the brokers have lost the records from offset {begin} to {end - 1}"
        return ClusterError(f"{text} — set unclean.leader.election.enable to false for this topic", "lost records")

    async def _twice(self, attempt: Callable[[], Awaitable[Written]]) -> Written:
        """Look for the leaders again after a ClusterError, once: they may have moved, or the topic may be deleted."""
        try:
            return await attempt()
        except ClusterError:
            self._write_leaders = None
            return await attempt()

    async def _write_look(self) -> TopicLook:
        self._write_leaders = self._write_leaders or await self._ensure(self._writing)
        return self._write_leaders

    async def _end(self) -> Written:
        topic = await self._write_look()
        ends = {}
        for partition, leader in enumerate(topic.leaders):
            ends[partition] = await self._offset(self._writing, leader, partition, _LATEST)
        return Written(topic.topic_id, ends)

    async def _publish(self, records: list[Record], *, known_topic: bool) -> Written:
        topic = await self._write_look()
        if known_topic and topic.topic_id != self.topic_id:
            raise ClusterError(f"{self.spec.name} has been created again")
        by_partition: dict[int, list[Record]] = {}
        for record in records:
            partition = (murmur2(record[0] or b"") & 0x7FFFFFFF) % len(topic.leaders)
            by_partition.setdefault(partition, []).append(record)
        ends = {}
        timestamp_ms = int(clock.wall() * 1000) if self.spec.timed else NO_TIMESTAMP
        for partition, some in by_partition.items():
            for batch, count in batches_of(some, timestamp_ms):
                read = self._positions.get(partition, 0) if topic.topic_id == self.topic_id else 0
                request = ProduceRequest(None, _ALL_REPLICAS, _PRODUCE_TIMEOUT_MS, [(self.spec.name, [(partition, batch)])])
                response = await self._writing.ask(topic.leaders[partition], request)
                with answer_of("Produce"):
                    ((_, ((_, code, first, *_),)),) = response.topics
                    if code == ErrorCode.INVALID_TIMESTAMP:
                        raise ClusterError(f"the brokers refuse this machine's time: set its clock ({code})", "clock")
                    check_error(code, f"{self.spec.name}-{partition}")
                    if first < read:  # the reader does not know of the loss yet, so `read_up_to` would not wait for it
                        raise self._lost(partition, first, read)
                    ends[partition] = first + count
        return Written(topic.topic_id, ends)

    def _failed(self, link: LinkStatus, done: str, error: ClusterError) -> None:
        right = "Read" if link is self.status.reader else "Write"
        remedy = f" — give Weir's user Create, {right}, Describe and DescribeConfigs on this topic: docs/reference/acls.md"
        link.connected, link.problem = False, f"{error}{remedy if isinstance(error, NotAuthorizedError) else ''}"
        if link.causes.is_news(error.cause, clock.monotonic()):
            _log.warning("topic %s can't be %s: %s", self.spec.name, done, link.problem)

    def _worked(self, link: LinkStatus, done: str) -> None:
        if link.problem:
            _log.info("topic %s is %s again", self.spec.name, done)
            link.causes.clear()
        link.connected, link.problem = True, ""

    async def _ensure(self, client: OwnClient, max_age: float = 0.0) -> TopicLook:
        """Return the topic, created if it is missing, when each partition has a leader. Raises ClusterError."""
        deadline = clock.monotonic() + LEADER_SECONDS
        while True:
            look = await client.look(self.spec.name, max_age=max_age)
            topic, max_age = look.topic, 0.0
            if topic is None:
                await self._create(client, look)
            elif topic.leaders and min(topic.leaders) >= 0:
                self._create_from = inf
                await self._check_policy(client)
                return topic
            if clock.monotonic() >= deadline:
                raise ClusterError(f"topic {self.spec.name} has no leader", "no leader")
            await asyncio.sleep(0.1)

    async def _create(self, client: OwnClient, look: ClusterLook) -> None:
        replicas = min(len(look.brokers), MAX_REPLICAS)
        await self._await_brokers(client, look, replicas)
        # The brokers' default compression.type may be a codec that some readers do not have.
        configs = list({POLICY: COMPACT, "compression.type": "producer", **self.spec.configs}.items())
        no_assignment: list[object] = []
        topic = (self.spec.name, 1, replicas, no_assignment, configs)
        response = await client.ask_any(CreateTopicsRequest([topic], _PRODUCE_TIMEOUT_MS, False))
        with answer_of("CreateTopics"):
            ((_, code, *message),) = response.topic_errors
            if code == ErrorCode.TOPIC_ALREADY_EXISTS:  # another gateway was faster
                return
            check_error(code, f"topic {self.spec.name} can't be created ({', '.join(map(str, message))})")
        self._policy_check_at = inf
        _log.info("topic %s created, replication factor %d", self.spec.name, replicas)

    async def _await_brokers(self, client: OwnClient, look: ClusterLook, alive: int) -> None:
        """Raise ClusterError while brokers of the usual number of replicas are missing: no one adds replicas later."""
        self._create_from = min(self._create_from, clock.monotonic() + BROKERS_SECONDS)
        if clock.monotonic() < self._create_from and alive < (
            usual := await usual_replicas(client, look.brokers, MAX_REPLICAS)
        ):
            raise ClusterError(f"it is created once {usual} brokers are alive, and {alive} are", "few brokers")

    async def _check_policy(self, client: OwnClient) -> None:
        """Log an error, once, if an operator has created the topic with another policy. A failure only delays this advice."""
        now = clock.monotonic()
        if now < self._policy_check_at:
            return
        self._policy_check_at = now + POLICY_RETRY_SECONDS
        try:
            wrong = await self.spec.wrong_policies(client)
        except ClusterError as error:
            _log.debug("topic %s: its %s is not known: %s", self.spec.name, POLICY, error)
            return
        self._policy_check_at = inf
        for policy in wrong[:1]:
            _log.error(
                "topic %s has cleanup.policy=%s, so records that Weir needs may be lost — "
                "set it to %s, or give Weir another topic",
                self.spec.name, policy, self.spec.policy,
            )  # fmt: skip
