"""The quotas of the API in a compacted topic that several gateways share.

The state file is a copy, so that a gateway can start while Kafka is unreachable. After Weir has read the topic, the topic
overrides the copy.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from gateway import clock
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import OwnClient
from gateway.cluster.record_batches import Headers, Record
from gateway.cluster.topic_log import RETRY_SECONDS, TopicLog
from gateway.cluster.topic_spec import TopicSpec
from gateway.features.quota_api.metrics import QuotaTopicReport
from gateway.features.quota_api.records import CLAIM_SECONDS, SKIPPED, QuotaRecords, claim, rebased, restored_records, settled
from gateway.features.quota_api.rules import AskedKeys
from gateway.features.quota_api.state_file import HistoryPosition, NotSavedError, QuotaCopy
from gateway.log import first_lines
from gateway.quotas.entity import DynamicQuotas

SAVE_SECONDS = 15.0
"""The timeout of a change, from its first record until Weir has read the records back."""

TOPIC_CONFIGS = {
    # A gateway that has lost its connection continues at its offset later, so tombstones are kept for a week.
    "delete.retention.ms": "604800000",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "86400000",
}

_ID_BYTES = 8
_REMEDY = "check that Weir reaches the brokers, and has the rights to read and write the topic"

_log = logging.getLogger("weir.quota_api")


class QuotaTopic:
    """A `QuotaStore` in a topic. `on_change` gets all quotas after each change by another gateway.

    If several workers share one `copy`, only one worker writes the copy (`writes_copy`).
    """

    def __init__(
        self,
        topic: str,
        connect: Callable[[], OwnClient],
        copy: QuotaCopy,
        on_change: Callable[[DynamicQuotas], None],
        *,
        writes_copy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._on_change = on_change
        self._copy = copy
        self._copied: DynamicQuotas = {}
        self._writes_copy = writes_copy
        self._to_copy = asyncio.Event()
        self._saving = asyncio.Lock()
        self._gateway = secrets.token_hex(_ID_BYTES)
        self._table = QuotaRecords(self._gateway, self._topic_id)
        self._skipped = self._table.skipped
        self._known: DynamicQuotas = {}
        self._position: HistoryPosition | None = None  # that of `_known`
        self._copied_position: HistoryPosition | None = None
        self._dirty = True  # an empty topic has a position as well
        self._to_put_back = False
        self._puts_back_from = 0.0  # monotonic seconds
        self._whole = asyncio.Event()
        spec = TopicSpec(topic, configs=TOPIC_CONFIGS)
        self._log = TopicLog(connect, spec, self._on_record, self._on_new_topic)

    @property
    def topic(self) -> str:
        return self._log.spec.name

    @property
    def whole(self) -> bool:
        """True after Weir has read the topic. Until then, Weir uses the quotas of the copy."""
        return self._whole.is_set()

    async def load(self) -> DynamicQuotas:
        """The copy's quotas. Raises ConfigError if the copy can't be read."""
        self._known = self._copied = await self._copy.load()
        self._position = self._copied_position = await self._copy.load_position(self._known)
        self._puts_back_from = clock.monotonic() + CLAIM_SECONDS  # a copy may be older than a running gateway's quotas
        return self._known

    async def catch_up(self) -> None:
        """Read up to the topic's end of now, and report changes to `on_change`. Raises NotSavedError."""
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await self._read_whole()
                await self._log.read_up_to(await self._log.end())
                await self._whole.wait()  # the topic may have been created again
        except (ClusterError, TimeoutError) as error:
            raise self._unread(error) from None
        self._take_over()

    async def save(self, before: DynamicQuotas, after: DynamicQuotas) -> DynamicQuotas:
        """Publish the difference, and wait until Weir has read it back. Returns the topic's quotas. Raises NotSavedError."""
        return await self._change(lambda: self._table.changes(rebased(before, after, self._table.quotas)))

    async def confirm(self, asked: AskedKeys) -> None:
        """Publish these quotas as changes, unless no gateway can replace them. Raises NotSavedError."""
        if self._table.unconfirmed(asked):
            await self._change(lambda: self._table.unconfirmed(asked))

    async def _change(self, difference: Callable[[], list[Record]]) -> DynamicQuotas:
        topic, begun, is_kept = self.topic, False, False
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await self._read_whole()
                while not is_kept:
                    records = difference()  # from the topic, because the copy may be older
                    if not self._table.settled:
                        records.append(settled(*self._history()))
                    begun = True
                    topic_id = await self._publish(records)
                    await self._whole.wait()  # a recreated topic may contain only this change so far
                    is_kept = topic_id == self._log.topic_id  # otherwise the change's topic was deleted meanwhile
                while records := self._table.completing(records):
                    await self._publish(records, known_topic=True)
        except (ClusterError, TimeoutError) as error:
            if not begun:
                raise self._unread(error) from None
            if not is_kept:
                reason = f"topic {topic} does not confirm it: {str(error) or 'it takes too long'}"
                raise NotSavedError(reason, _REMEDY, "so it may take effect later, or not at all") from None
        self._take_over()
        return self._known

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._log.run(), name="read the quotas of the API")
                group.create_task(self._keep_copy(), name="keep a copy of the quotas of the API")
                while True:
                    await self._log.looked()
                    if self._log.status.caught_up:
                        await self._follow()
        finally:
            await self._log.close()

    async def stop(self) -> None:
        """Save the copy for the last time: `run` may have been cancelled just after a change."""
        with suppress(NotSavedError):  # already logged, or the topic has the change as well
            await self._save_copy()

    def report(self) -> QuotaTopicReport:
        status = self._log.status
        return QuotaTopicReport(status, len(self._known), {**dict.fromkeys(SKIPPED, 0), **self._skipped, **status.skipped})

    async def _follow(self) -> None:
        """Called each time the reader has reached the end of the topic."""
        has_lost_records = self._has_lost_records()
        if has_lost_records:
            self._to_put_back = True
        elif self._is_comparable():
            self._to_put_back = self._knows_more()
        elif self._knows_earlier_topic() and not self._table.concluded:
            self._to_put_back = True  # a gateway was killed before it could put back more than one change
        if not self._knows_more() and clock.monotonic() < self._puts_back_from:
            # A gateway with newer quotas may still fill the new topic.
            if self._table.filled and not has_lost_records:
                self._to_put_back = False
            if self._to_put_back or (not self._table.settled and self._known):
                return
        if not self._table.settled and self._known:
            await self._migrate()
        if not self._table.settled and (self._known or self._table.claimant(clock.monotonic()) is not None):
            return
        if self._to_put_back and not await self._put_back():
            return
        if not self._whole.is_set():
            _log.info("the quotas of the API come from topic %s: %d entities", self.topic, len(self._table.quotas))
        self._whole.set()
        if self._dirty:
            self._take_over()

    def _knows_earlier_topic(self) -> bool:
        """True if the known quotas are those of a topic that was deleted."""
        return self._position is not None and self._position.topic_id != self._topic_id()

    def _has_lost_records(self) -> bool:
        """True if the topic ends before the known quotas. An unclean election can do this, or a new disk.

        Late quotas prove no loss: their file may be deleted, or an older one that an operator has put there.
        """
        if self._position is None or self._knows_earlier_topic():
            return False
        return self._position.offset > self._table.origin + self._log.offset

    def _is_comparable(self) -> bool:
        """True if a gateway has filled a new topic that goes on with the history of the known quotas."""
        return self._knows_earlier_topic() and self._history()[0] == self._table.history

    def _knows_more(self) -> bool:
        """True if the known quotas are newer than those by which another gateway filled a new topic."""
        return self._is_comparable() and self._history()[1] > self._table.origin

    def _history(self) -> tuple[str | None, int]:
        """The arguments of `settled`."""
        if self._position is None:
            return None, 0
        return self._position.history, self._position.offset + self._position.late

    def _topic_id(self) -> str:
        return (self._log.topic_id or b"").hex()

    async def _migrate(self) -> None:
        """Fill a new topic with the known quotas, unless another gateway has claimed this task."""
        claimant = self._table.claimant(clock.monotonic())
        try:
            if claimant is None:
                async with asyncio.timeout(SAVE_SECONDS):
                    await self._publish([claim(self._gateway)])
            elif claimant == self._gateway:
                await self._publish_missing([])
        except (ClusterError, TimeoutError):  # TopicLog has logged it
            await asyncio.sleep(RETRY_SECONDS)

    async def _put_back(self) -> bool:
        """Add the known quotas to a topic that has lost them, and already has another gateway's change."""
        try:
            await self._publish_missing([claim(self._gateway)])
        except (ClusterError, TimeoutError):  # TopicLog has logged it
            await asyncio.sleep(RETRY_SECONDS)
            return False
        self._to_put_back = False
        if not self._knows_earlier_topic():
            self._report_lost_changes()
        return True

    def _report_lost_changes(self) -> None:
        """Log the entities with another quota than before. The topic has lost a change, or has a later one."""
        quotas = self._table.quotas
        lost = [str(entity) for entity in {**self._known, **quotas} if self._known.get(entity) != quotas.get(entity)]
        if lost:
            _log.warning(
                "topic %s has lost changes, so earlier quotas hold for %d of the entities: %s — check them with"
                " kafka-configs.sh, and set them again",
                self.topic, len(lost), "; ".join(first_lines(lost)),
            )  # fmt: skip

    async def _publish_missing(self, end: list[Record]) -> None:
        newer, (history, offset) = self._knows_more(), self._history()
        put = self._table.missing(self._known, offset, newer=newer)
        if put or newer or not self._table.filled or self._has_lost_records():
            async with asyncio.timeout(SAVE_SECONDS):
                # In a newer topic, `settled` would hide the quotas that only this topic has.
                await self._publish([*restored_records(put, offset), *end, settled(history, offset)], known_topic=True)
                await self._publish(self._table.repairs(put, history, offset), known_topic=True)
        if put:
            _log.info("%d entities' quotas were put into topic %s", len(put), self.topic)

    def _unread(self, error: Exception) -> NotSavedError:
        return NotSavedError(f"topic {self.topic} has not been read yet: {str(error) or 'it takes too long'}", _REMEDY)

    async def _read_whole(self) -> None:
        """Wait until Weir has read the topic. Raises ClusterError if the reader can't reach the topic now."""
        if not self._whole.is_set() and self._log.status.reader.problem:
            raise ClusterError(self._log.status.reader.problem)
        await self._whole.wait()

    async def _publish(self, records: list[Record], *, known_topic: bool = False) -> bytes | None:
        """Publish the records and wait until Weir has read them back. Returns the id of the topic that they are in."""
        if not records:
            return self._log.topic_id
        written = await self._log.publish(records, look=True, known_topic=known_topic)
        await self._log.read_up_to(written)
        return written.topic_id

    def _take_over(self) -> None:
        """Report the quotas of the topic to `on_change`, and wake the copy."""
        self._dirty = False
        if self._table.quotas != self._known:
            self._known = dict(self._table.quotas)
            self._on_change(self._known)
        topic = self._topic_id()
        self._position = HistoryPosition(self._table.history or topic, topic, self._table.origin + self._log.offset)
        self._to_copy.set()

    async def _keep_copy(self) -> None:
        failing = False
        while True:
            await self._to_copy.wait()
            self._to_copy.clear()
            try:
                # A cancelled task would leave a thread that still writes, beside that of `stop`.
                await asyncio.shield(self._save_copy())
                failing = False
            except NotSavedError as error:
                if not failing:
                    _log.warning("the copy of the API's quotas can't be saved: %s — %s", error, error.remedy)
                failing = True
                await asyncio.sleep(RETRY_SECONDS)
                self._to_copy.set()

    async def _save_copy(self) -> None:
        async with self._saving:
            if not self._writes_copy():
                return
            known, position = self._known, self._position
            if known != self._copied:
                self._copied = await self._copy.save(self._copied, known)
            if position is not None and position != self._copied_position:
                await self._copy.save_position(position, known)
                self._copied_position = position

    def _on_record(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        reason = self._table.receive(key, value, headers, clock.monotonic())
        if reason is None:
            self._dirty = True
        elif self._skipped[reason] == 1:
            name = self.topic
            _log.warning(
                "Weir skips a record of topic %s (%s) and logs no further records with this reason: %.200r",
                name,
                reason,
                key,
            )

    def _on_new_topic(self) -> None:
        """Start to fill a topic that was created again, or has lost records, with the known quotas."""
        self._table = QuotaRecords(self._gateway, self._topic_id)
        self._table.skipped = self._skipped
        self._to_put_back = self._dirty = True
        # After an interruption, this gateway may lack the last changes.
        self._puts_back_from = clock.monotonic() + (CLAIM_SECONDS if self._log.status.interrupted else 0.0)
        self._whole.clear()
