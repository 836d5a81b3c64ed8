"""Connects this gateway's `Member` to the usage topic.

One message at a time is in flight. If a message takes longer than an interval, the next message has the use of both.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import OwnClient
from gateway.cluster.record_batches import Headers, Record
from gateway.cluster.topic_log import RETRY_SECONDS, TopicLog
from gateway.cluster.topic_spec import TopicSpec
from gateway.feature import Feature
from gateway.features.sharing.config import SharingConfig
from gateway.features.sharing.known_peers import MAX_MEMBERS
from gateway.features.sharing.member import TIMELY_RECORDS, Member
from gateway.features.sharing.metrics import METRICS, SharingReport
from gateway.features.sharing.peer_counts import SharedCounts
from gateway.features.sharing.shared_usage import SharedUsage, reading_pause
from gateway.features.sharing.use_message import ID_DIGITS, MAX_MESSAGE_BYTES
from gateway.quotas.engine import QuotaEngine
from gateway.steps import Steps, at_once
from gateway.time_slices import in_slices

MAX_WAITING_BYTES = 32 * 1024 * 1024
"""The maximum size of the messages that wait until a fetch or a backlog is read."""

LEAVE_SECONDS = 2.0
"""The maximum time for the last message of a gateway that stops. Peers forget a gateway without a last message later."""

TOPIC_CONFIGS = {
    # A message is useful for some seconds. Brokers compact only closed segments, so they delete old segments as well.
    "cleanup.policy": "compact,delete",
    "retention.ms": "600000",
    "segment.ms": "120000",
    "segment.bytes": "67108864",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}

_ID_BYTES = 8

_SILENCE: Final = "this gateway does not receive its own messages — see if a quota of the brokers throttles its client-id weir"

_log = logging.getLogger("weir.sharing")


class Sharing(Feature[SharingConfig | None]):
    """Charges `engine` and `shared` for the use at other gateways, and publishes this gateway's use."""

    page = "sharing"
    metrics = METRICS

    def __init__(
        self,
        config: SharingConfig,
        connect: Callable[[], OwnClient],
        engine: QuotaEngine,
        shared: Sequence[SharedUsage] = (),
        counts: Sequence[SharedCounts] = (),
    ) -> None:
        """`counts`: the numbers of open connections and of producers, which gateways share as well."""
        self._config = config
        self._begun = clock.monotonic()
        identity = secrets.token_hex(_ID_BYTES)
        self._member = Member(
            identity, engine, config.interval, self._begun, fair_share=config.fair_share, shared=shared, counts=counts
        )
        self._log = TopicLog(connect, TopicSpec(config.topic, configs=TOPIC_CONFIGS), self.on_record)
        self._latest: dict[bytes | None, deque[bytes | None]] = {}
        self._waiting_bytes = 0  # of the values in `_latest`
        self._due: deque[tuple[bytes | None, bytes | None]] = deque()
        self._arrived = asyncio.Event()
        self._backlog = True  # the topic has records of members that have left long ago
        self._outgoing: Sequence[Record] = ()
        self._wake_publisher = asyncio.Event()
        self._writing = asyncio.Lock()
        self._leaving = False
        self._reported: tuple[int, bool] | None = None

    @property
    def member(self) -> Member:
        return self._member

    def start(self, tasks: BackgroundTasks) -> None:
        self._task = tasks.start("share quotas with other gateways", self._run)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._log.run(), name="read the use of other gateways")
                group.create_task(self._follow(), name="follow the end of each fetch")
                group.create_task(self._deliver(), name="charge the use of other gateways")
                group.create_task(self._publish(), name="publish the use of this gateway")
                while True:
                    began = clock.monotonic()
                    await self._step(began)
                    await asyncio.sleep(max(0.0, self._member.interval - (clock.monotonic() - began)))
        finally:
            await self._log.close()

    async def stop(self) -> None:
        """Publish the last use and a tombstone. Takes at most `LEAVE_SECONDS`, and logs a failure."""
        self._leaving = True
        try:
            async with asyncio.timeout(LEAVE_SECONDS), self._writing:
                if self._outgoing:
                    self._member.not_published()
                await self._log.publish(self._member.final_records(clock.monotonic()))
        except (ClusterError, TimeoutError) as error:
            _log.warning("the last message to the other gateways can't be published: %s", error or "the topic does not answer")
        await super().stop()

    def apply(self, section: SharingConfig | None) -> list[str]:
        """Only the interval and `when_unreachable` can change: a reload that changes another key is refused."""
        if section is not None and section != self._config:
            self._config = section
            self._member.configure(section.interval, fair_share=section.fair_share)
        return []

    def report(self) -> SharingReport:
        member, status = self._member, self._member.status
        return SharingReport(
            identity=member.identity,
            topic=self._config.topic,
            interval_seconds=member.interval,
            when_unreachable=self._config.when_unreachable,
            members=status.members,
            reachable=status.reachable,
            entities=member.tracked,
            messages_total=self._log.status.records_total,
            published_total=self._log.status.published_total,
            publication_errors_total=self._log.status.publication_errors_total,
            left_out_total=status.left_out_total,
            skipped=dict(status.skipped) | self._log.status.skipped,
            reader_problem=self._log.status.reader.problem,
            publisher_problem=self._log.status.publisher.problem,
        )

    def on_record(self, key: bytes | None, value: bytes | None, _headers: Headers) -> None:
        """Keep the last records of each member until a fetch or a backlog is read.

        Counts are cumulative, so the member gets only the last record of a backlog. It gets all timely records: a message has
        only the entities with new use.
        """
        if len(key or b"") > ID_DIGITS or len(value or b"") > MAX_MESSAGE_BYTES:
            self._member.receive(key, value, clock.monotonic())  # it counts the reason and keeps nothing
            return
        if key not in self._latest:
            self._latest[key] = deque(maxlen=self._member.timely_records(key, clock.monotonic()) + 1)
        waiting = self._latest[key]
        if len(waiting) == waiting.maxlen:
            self._waiting_bytes -= len(waiting[0] or b"")
        waiting.append(value)
        self._waiting_bytes += len(value or b"")
        if len(self._latest) > MAX_MEMBERS or self._waiting_bytes > MAX_WAITING_BYTES:  # another program writes to the topic
            self._collect(part=True)
            at_once(self._delivered())

    async def _follow(self) -> None:
        while True:
            await self._log.looked()
            self._fetch_ends()

    def _fetch_ends(self) -> None:
        """Give the member its records after those of a fetch have been read, or those of a backlog.

        The reader pauses within a fetch. A part of a backlog would make a member alive, and the next part its use of minutes.
        """
        if self._log.status.behind:
            self._backlog = True
            return
        self._collect()
        self._backlog = False
        self._arrived.set()

    async def _deliver(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await in_slices(self._delivered())

    def _collect(self, *, part: bool = False) -> None:
        """Choose the records that the member gets: of a part of a fetch or a backlog, only those of living members."""
        for key, records in self._latest.items():
            kept = list(records)
            known = self._member.timely_records(key, clock.monotonic()) > TIMELY_RECORDS
            if part and not known:
                self._member.status.skipped["too_many_members"] += len(kept)
                continue
            if len(kept) == records.maxlen or (self._backlog and not known):
                kept = kept[-2:] if kept[-1] is None else kept[-1:]  # a last message, and then the tombstone
            self._due.extend((key, record) for record in kept)
        self._latest.clear()
        self._waiting_bytes = 0

    def _delivered(self) -> Steps[None]:
        while self._due:
            self._member.receive(*self._due.popleft(), clock.monotonic())
            yield

    async def _step(self, now: float) -> None:
        busy = self._leaving or self._writing.locked() or len(self._outgoing) > 0
        records = await in_slices(self._member.steps(clock.monotonic, publish=not busy))
        self._log.pause = reading_pause(self._member.interval, self._config.interval)
        if records:
            self._outgoing = records
            self._wake_publisher.set()
        status = self._member.status
        if not status.reachable and now - self._begun < self._member.expiry:
            return  # the first message may still be on its way
        if (status.members, status.reachable) != self._reported:
            self._report_change(status.members, reachable=status.reachable)
            self._reported = (status.members, status.reachable)

    async def _publish(self) -> None:
        while True:
            await self._wake_publisher.wait()
            self._wake_publisher.clear()
            async with self._writing:
                if self._leaving:
                    return
                try:
                    await self._log.publish(self._outgoing)
                except ClusterError:
                    self._member.not_published()
                    await asyncio.sleep(RETRY_SECONDS)
                except BaseException:  # a bug, or a failed reader has cancelled this task: `run` starts again
                    self._member.not_published()
                    raise
                finally:
                    self._outgoing = ()

    def _report_change(self, members: int, *, reachable: bool) -> None:
        more = {"members": members, "reachable": reachable}
        if reachable:
            _log.info("quotas are shared by %d gateway%s", members, "" if members == 1 else "s", extra=more)
            return
        status = self._log.status
        problem = status.reader.problem or status.publisher.problem or _SILENCE
        part = f"1/{members} of its quota" if self._config.fair_share else "its whole quota"
        _log.warning(
            "topic %s is unreachable. Meanwhile this gateway gives every entity %s (sharing.when_unreachable: %s): %s",
            self._config.topic,
            part,
            self._config.when_unreachable,
            problem,
            extra=more,
        )
