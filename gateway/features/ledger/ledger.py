"""The ledger: gathers events in the event loop, writes them in a thread, and gives up events rather than memory."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from gateway import clock
from gateway.events import Event, partition, to_line
from gateway.features.ledger.agreed_time import AgreedTime
from gateway.features.ledger.config import LedgerConfig
from gateway.features.ledger.files import LedgerFiles
from gateway.features.ledger.fold import ThrottleFolds
from gateway.features.ledger.notes import Notes
from gateway.features.ledger.usage import UsageSampler
from gateway.proxy.counters import Counters
from gateway.quotas.bucket import Bucket

MAX_PENDING = 50_000
"""Events between two flushes, besides the throttles, which are folded."""

_LOOK_SECONDS = 1.0
_RETAIN_SECONDS = 300.0
_DAY = 86_400.0

_log = logging.getLogger("weir.ledger")


class Publisher(Protocol):
    """Where else events go, such as a Kafka topic."""

    def publish(self, lines: list[str]) -> int:
        """Take the lines without waiting; returns how many it has no room for."""
        ...


class Ledger:
    """Writes down what happens in this gateway.

    `folds` is the sessions' recorder; `notes` makes events of what else happens; `publisher` gets what the files get.
    What could not be kept is counted in `Counters.ledger_dropped`: a queue was full, the disk was, or there were more
    entities than an interval holds; what only `publisher` had no room for, in `ledger_topic_dropped`.
    """

    def __init__(
        self,
        config: LedgerConfig,
        counters: Counters,
        buckets: Callable[[], Iterable[Bucket]],
    ) -> None:
        self.gateway = config.gateway or socket.gethostname()
        self.folds = ThrottleFolds()
        self.notes = Notes(self.gateway, self.note, clock.wall)
        self._counters = counters
        self._config = config
        self._buckets = buckets
        self.publisher: Publisher | None = None
        self._pending: list[Event] = []
        self._agreed_time = AgreedTime()
        self._usage = UsageSampler(clock.wall())
        self._files = LedgerFiles(
            config.path,
            self.gateway,
            rotate_seconds=config.rotate_seconds,
            retention_seconds=config.retention_days * _DAY,
            max_bytes=config.max_bytes,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._closed = False

    def note(self, event: Event) -> None:
        """Keep an event for the next flush."""
        if len(self._pending) >= MAX_PENDING:
            self._counters.ledger_dropped += 1
        else:
            self._pending.append(event)

    def forgotten(self, bucket: Bucket) -> None:
        """A bucket is dropped; what it was used for since the last sample is to be told."""
        self._usage.forgotten(bucket)

    def reconfigure(self, config: LedgerConfig) -> None:
        """Follow a change of the intervals and of what is kept; the path stays."""
        self._config = config
        self._files.rotate_seconds = config.rotate_seconds
        self._files.retention_seconds = config.retention_days * _DAY
        self._files.max_bytes = config.max_bytes

    async def run(self) -> None:
        """Write until cancelled, then `close`."""
        loop = asyncio.get_running_loop()
        flushed, retained = clock.monotonic(), 0.0
        try:
            recovered = await loop.run_in_executor(self._thread, self._files.recover, clock.wall())
            if recovered:
                _log.info("%d files that were left unfinished have been finished", recovered)
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                self._sample()
                now = clock.monotonic()
                if now - flushed >= self._config.flush_seconds:
                    flushed = now
                    await self.flush()
                if now - retained >= _RETAIN_SECONDS or not retained:
                    retained = now
                    await loop.run_in_executor(self._thread, self._retain)
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Write the last lines and finish the files. Blocks until that is done; only the first call has an effect."""
        if self._closed:
            return
        self._closed = True
        self._sample(last=True)
        # Not awaited: whoever is cancelled has no time left, and there is not much to write.
        self._thread.submit(self._files.write, self._lines(), clock.wall(), clock.monotonic())
        self._thread.submit(self._files.close)
        self._thread.shutdown(wait=True)

    async def flush(self) -> None:
        """Write what has been gathered."""
        lines = self._lines()
        try:
            lost = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._files.write, lines, clock.wall(), clock.monotonic()
            )
        except Exception:  # whatever it is, clients go on
            lost = sum(map(len, lines.values()))
            _log.exception("%d events are lost: the ledger can't be written", lost)
        self._counters.ledger_dropped += lost

    def _sample(self, *, last: bool = False) -> None:
        for sample in self._usage.take(self.gateway, self._buckets(), clock.wall(), last=last):
            self.note(sample)
        self._move_drops()

    def _move_drops(self) -> None:
        for source in (self.folds, self._usage, self.notes):
            self._counters.ledger_dropped += source.dropped
            source.dropped = 0

    def _lines(self) -> dict[str, list[str]]:
        events, self._pending = self._pending, []
        events.extend(self.notes.take_rejections())
        events.extend(self.folds.take(self.gateway, clock.monotonic(), clock.wall()))
        lines: dict[str, list[str]] = {}
        for event in events:
            try:
                lines.setdefault(partition(event.time_ms), []).append(to_line(event))
            except ValueError as error:
                self._counters.ledger_dropped += 1
                _log.error("an event (%s) is lost: it is no line of the ledger: %s", event.TYPE, error)
        if self.publisher is not None and events:
            self._counters.ledger_topic_dropped += self.publisher.publish([line for some in lines.values() for line in some])
        return lines

    def _retain(self) -> None:
        try:
            deleted = self._files.retain(self._agreed_time.look(clock.monotonic(), clock.wall()))
        except OSError as error:
            _log.warning("old files of the ledger can't be deleted: %s", error)
        else:
            if deleted:
                _log.info("%d old files of the ledger deleted", deleted)
