"""The ledger: gathers events in the event loop and writes them in a thread. Full queues drop events, so memory is bounded."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Protocol

from gateway import clock
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.events import ConnectionRejected, Event, to_line
from gateway.feature import Feature
from gateway.features.ledger.config import LedgerConfig
from gateway.features.ledger.files import AgreedTime, LedgerFiles
from gateway.features.ledger.fold import ThrottleFolds
from gateway.features.ledger.group_sampler import GroupSampler
from gateway.features.ledger.ledger_topic import LedgerTopic
from gateway.features.ledger.metrics import METRICS, LedgerTopicReport
from gateway.features.ledger.shadow_sampler import ShadowSampler
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.ledger_paths import partition
from gateway.proxy.counters import Counters
from gateway.quotas.bucket import Bucket
from gateway.quotas.group_buckets import GroupShareRow
from gateway.steps import Steps, at_once
from gateway.time_slices import in_slices

MAX_PENDING = 50_000
"""The maximum number of events between two flushes.

Throttles and rejections do not count, because they are folded. Samples have a bound of their own (`MAX_SAMPLES`).
"""

MAX_REJECTIONS = 10_000
"""The maximum number of folds between two flushes. Further rejections are counted as dropped."""

LONGEST_FOLD_SECONDS = 60.0
"""Reports count all decisions of a fold for the minute of its first one, so no flush comes later than that."""

_LOOK_SECONDS = 1.0
_RETAIN_SECONDS = 300.0
_DAY = 86_400.0

_log = logging.getLogger("weir.ledger")


class Lossy(Protocol):
    """A source of events. `dropped` counts those that it had no room for."""

    dropped: int


class RejectionFolds:
    """The `ConnectionRejected` events between two flushes, folded by reason, address, listener and user."""

    def __init__(self) -> None:
        self._folds: dict[tuple[str, str | None, str | None, str | None], tuple[int, int, int]] = {}
        self.dropped = 0

    def add(self, event: ConnectionRejected) -> None:
        key = (event.reason, event.address, event.listener, event.user)
        first, _, count = self._folds.get(key, (event.time_ms, 0, 0))
        if count == 0 and len(self._folds) >= MAX_REJECTIONS:
            self.dropped += 1
        else:
            self._folds[key] = (first, event.last_ms, count + event.count)

    def take(self, gateway: str) -> Iterator[ConnectionRejected]:
        folds, self._folds = self._folds, {}
        for (reason, address, listener, user), (first, last, count) in folds.items():
            yield ConnectionRejected(
                time_ms=first,
                last_ms=last,
                gateway=gateway,
                reason=reason,
                address=address,
                listener=listener,
                user=user,
                count=count,
            )


class Ledger(Feature[LedgerConfig | None]):
    """Writes the events of this gateway to files, and to `topic` as well. It is an `Observer`.

    `gateway` is the name in events. `folds` is the sessions' recorder.
    `Counters.ledger_dropped` counts lost events: a queue or the disk was full, or an interval had too many entities.
    `Counters.ledger_topic_dropped` counts lines that are in the files, and that `topic` has dropped.
    """

    metrics = METRICS

    def __init__(
        self,
        config: LedgerConfig,
        gateway: str,
        counters: Counters,
        samplers: Sequence[tuple[UsageSampler | ShadowSampler, Callable[[], Iterable[Bucket]]]] = (),
        topic: LedgerTopic | None = None,
        groups: Callable[[float], Iterable[GroupShareRow]] | None = None,
    ) -> None:
        """`samplers` come with the present buckets of their engine. `groups` takes the monotonic time."""
        self._gateway = gateway
        self.folds = ThrottleFolds()
        self._rejections = RejectionFolds()
        self._counters = counters
        self._config = config
        self._topic = topic
        self._samplers = samplers
        self._groups = groups
        self._group_sampler = GroupSampler(clock.wall())
        self._pending: list[Event] = []
        self._samples: list[Event] = []  # apart from `_pending`, which the changes of one reload can fill
        self._agreed_time = AgreedTime()
        self._files = LedgerFiles(
            config.path,
            gateway,
            rotate_seconds=config.rotate_seconds,
            retention_seconds=config.retention_days * _DAY,
            max_bytes=config.max_bytes,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._flushing: Steps[dict[str, list[str]]] | None = None  # to be finished by `close` if the flush is cancelled
        self._closed = False
        self._tasks: list[BackgroundTask] = []

    def notify(self, event: Event) -> None:
        if isinstance(event, ConnectionRejected):
            self._rejections.add(event)
        elif len(self._pending) >= MAX_PENDING:
            self._counters.ledger_dropped += 1
        else:
            self._pending.append(event)

    def apply(self, section: LedgerConfig | None) -> list[str]:
        """Only the intervals and limits of the files can change: a reload that changes the path is refused."""
        if section is not None:
            self._config = section
            self._files.rotate_seconds = section.rotate_seconds
            self._files.retention_seconds = section.retention_days * _DAY
            self._files.max_bytes = section.max_bytes
        return []

    def report(self) -> LedgerTopicReport | None:
        return None if self._topic is None else LedgerTopicReport(self._topic.connected)

    def start(self, tasks: BackgroundTasks) -> None:
        self._tasks = [tasks.start("write the ledger", self._run, self.close)]
        if self._topic is not None:
            publisher = tasks.start("publish the ledger", self._topic.run)
            publisher.task.add_done_callback(self._end_topic)
            self._tasks.append(publisher)

    async def stop(self) -> None:
        for task in self._tasks:  # the topic after the files: `close` gives it the last lines
            task.cancel()

    def _end_topic(self, _: asyncio.Task[None]) -> None:
        """Blocks the loop, as `close` does: the process is about to end."""
        if self._topic is not None:
            self._topic.end()
            self._count_dropped(self._topic)

    async def _run(self) -> None:
        """Write until cancelled, then `close`."""
        loop = asyncio.get_running_loop()
        flushed, retained = clock.monotonic(), 0.0
        try:
            recovered = await loop.run_in_executor(self._thread, self._files.recover, clock.wall())
            if recovered:
                _log.info("%d unfinished files of an earlier process are finished", recovered)
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                await in_slices(self._sample())
                now = clock.monotonic()
                if now - flushed >= min(self._config.flush_seconds, LONGEST_FOLD_SECONDS):
                    flushed = now
                    await self.flush()
                if now - retained >= _RETAIN_SECONDS or not retained:
                    retained = now
                    await loop.run_in_executor(self._thread, self._retain)
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Write the last lines and finish the files. Blocks until the end; only the first call has an effect."""
        if self._closed:
            return
        self._closed = True
        at_once(self._sample(last=True))
        # Blocks the loop: a cancelled task can't await the thread, and there is not much to write.
        for lines in (self._flushing, self._lines()):
            if lines is not None:
                self._thread.submit(self._files.write, at_once(lines), clock.wall(), clock.monotonic())
        self._thread.submit(self._files.close)
        self._thread.shutdown(wait=True)

    async def flush(self) -> None:
        self._flushing = self._lines()
        try:
            lines = await in_slices(self._flushing)
        except Exception:
            self._flushing = None
            raise
        self._flushing = None
        try:
            lost = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._files.write, lines, clock.wall(), clock.monotonic()
            )
        except Exception:  # an error of the ledger must not end the gateway
            lost = sum(map(len, lines.values()))
            _log.exception("%d events are lost: the ledger can't be written", lost)
        self._counters.ledger_dropped += lost

    def _sample(self, *, last: bool = False) -> Steps[None]:
        sources: list[Lossy] = [self.folds, self._rejections]
        for sampler, buckets in self._samplers:
            samples = yield from sampler.take(self._gateway, buckets(), clock.wall(), last=last)
            self._samples += samples
            sources.append(sampler)
        if self._groups is not None:
            rows = self._groups(clock.monotonic())
            self._samples += self._group_sampler.take(self._gateway, rows, clock.wall(), last=last)
            sources.append(self._group_sampler)
        if self._topic is not None:
            self._count_dropped(self._topic)
        for source in sources:
            self._counters.ledger_dropped += source.dropped
            source.dropped = 0

    def _count_dropped(self, topic: LedgerTopic) -> None:
        self._counters.ledger_topic_dropped += topic.dropped
        topic.dropped = 0

    def _lines(self) -> Steps[dict[str, list[str]]]:
        """The lines of all gathered events, by folder."""
        pending, self._pending = self._pending, []
        samples, self._samples = self._samples, []
        rejected = self._rejections.take(self._gateway)
        throttled = self.folds.take(self._gateway, clock.monotonic(), clock.wall())
        lines: dict[str, list[str]] = {}
        for event in chain[Event](pending, samples, rejected, throttled):
            yield
            try:
                line = to_line(event)
            except ValueError as error:
                self._counters.ledger_dropped += 1
                _log.error("an event (%s) is lost: it can't be written as a line of the ledger: %s", event.TYPE, error)
                continue
            lines.setdefault(partition(event.time_ms), []).append(line)
            if self._topic is not None:
                self._topic.publish(line)
        return lines

    def _retain(self) -> None:
        """Finish abandoned files, then delete old ones."""
        found = self._files.finish_abandoned(clock.wall())
        if found:
            _log.info("%d unfinished files of a gateway that has ended are finished", found)
        try:
            deleted = self._files.retain(self._agreed_time.look(clock.monotonic(), clock.wall()))
        except OSError as error:
            _log.warning("old files of the ledger can't be deleted: %s", error)
        else:
            if deleted:
                _log.info("%d old files of the ledger deleted", deleted)
