"""Keeps recent usage over a restart: saved every few seconds and at the end, put back at the start.

After any failure the gateway logs it and goes on: at worst, clients get one burst too many.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from gateway import clock
from gateway.admin.metrics.row import Row, Value, reasons
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.feature import Feature
from gateway.features.recent_use.usage_file import (
    BadUsageFileError,
    Usage,
    cut,
    entity_line,
    listener_line,
    member_lines,
    read_usage,
    topic_line,
    write_usage,
)
from gateway.features.sharing.shared_usage import Entity, Known
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.recent_use import BucketUse, Moment, RecentUse, TopicSpent, entity_uses, restore_entity, seconds_between
from gateway.quotas.shared_meter import UsageAccount

Account = tuple[Entity, UsageAccount]

_TOGETHER = 50
"""Buckets that are written down before clients have their turn again: half a millisecond's work."""

_REST = 50.0
"""It pauses so many times as long as it worked, so that saving very many buckets takes 2 % of the time at most."""

METRICS: tuple[Row, ...] = (
    Value("counter", "weir_usage_saves_total", "Attempts to save recent usage for the next start, by what came of them.",
          ("result",), reasons(lambda scrape: scrape.usage_saves)),
)  # fmt: skip

_log = logging.getLogger("weir.state")


class RecentListeners(Protocol):
    """The rates of listeners, by name, and of the gateway (None)."""

    def recent_uses(self, now: float) -> Mapping[str | None, RecentUse]: ...

    def restore(self, listener: str | None, use: RecentUse, now: float) -> None: ...


class RecentTopics(Protocol):
    """The rates of topics that are at work now."""

    def accounts(self) -> Iterable[Account]: ...

    def recent_uses(self, accounts: Iterable[Account], now: float) -> Iterable[TopicSpent]: ...

    def restore_uses(self, saved: Iterable[TopicSpent], seconds: float, now: float) -> None:
        """Put uses into the rates that were saved so many seconds ago."""
        ...


class RecentPeers(Protocol):
    """The other gateways that share quotas with this one."""

    def peers(self) -> Iterable[str]: ...

    def known(self, identity: str) -> Known | None: ...

    def remember(self, known: Known, at: float, now: float) -> None: ...


class RecentUsage(Feature[None]):
    """One gateway's usage in the file at `path`, written every `interval` seconds. `saves` counts by result.

    `peers` is None for a gateway that does not share its quotas.
    """

    metrics = METRICS

    def __init__(
        self,
        path: Path,
        interval: float,
        engine: QuotaEngine,
        listeners: RecentListeners,
        topics: RecentTopics | None,
        peers: RecentPeers | None,
        saves: Counter[str],
    ) -> None:
        self._peers = peers
        self._topics = topics
        self._read: tuple[Usage, float] | None = None  # and at which time, by the monotonic clock, it had been saved
        self.saves = saves
        self._path = path
        self._interval = interval
        self._engine = engine
        self._listeners = listeners
        self._file_holds_something = True
        self._write: asyncio.Future[None] | None = None
        self._failing = False
        self._task: BackgroundTask | None = None

    async def restore(self) -> None:
        """Put back what was saved last. To be called before anybody is served, once the quotas are known."""
        try:
            usage = await asyncio.to_thread(read_usage, self._path)
        except FileNotFoundError:
            self._file_holds_something = False
            return
        except (OSError, BadUsageFileError) as error:
            _log.warning("recent usage can't be read, so every client starts with its whole burst: %s: %s", self._path, error)
            return
        seconds = seconds_between(usage.at, _now())
        if seconds is None:
            _log.warning("recent usage was saved too long ago, or in the future, and is not used: %s", self._path)
            return
        now = clock.monotonic()
        restored = sum(
            restore_entity(self._engine, BucketUse(saved.kind, saved.tags, saved.use.aged(seconds)), now)
            for saved in usage.entities
        )
        for listener, use in usage.listeners.items():
            self._listeners.restore(listener, use.aged(seconds), now)
        self._read = usage, now - seconds
        if self._peers is not None:
            for known in usage.members:
                self._peers.remember(known, now - seconds, now)
        _log.info("recent usage restored", extra={"buckets": restored, "seconds_ago": round(seconds, 1)})
        if usage.damaged:
            _log.warning("%d lines of %s are damaged or missing and were left out", usage.damaged, self._path)

    def start(self, tasks: BackgroundTasks) -> None:
        self._restore_topics()
        self._task = tasks.start("save recent usage", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self.save()

    def _restore_topics(self) -> None:
        """Topic quotas are at work only now, after their feature has started."""
        if self._read is not None and self._topics is not None:
            usage, saved_at = self._read
            now = clock.monotonic()
            self._topics.restore_uses(usage.topics, now - saved_at, now)
        self._read = None

    async def _run(self) -> None:
        worked = 0.0
        while True:
            await asyncio.sleep(max(self._interval, worked * _REST))
            began = clock.monotonic()
            await self.save()
            worked = clock.monotonic() - began

    async def save(self) -> None:
        """Write down what is remembered now; nothing where that is nothing, and was nothing before."""
        if self._write is not None and not self._write.done():  # of a `run` that was cancelled
            await asyncio.wait([self._write])
        lines: list[str] = []
        buckets = list(self._engine.buckets())
        for start in range(0, len(buckets), _TOGETHER):
            uses = entity_uses(self._engine, buckets[start : start + _TOGETHER], clock.monotonic())
            lines += map(entity_line, uses)
            await asyncio.sleep(0)
        lines += [listener_line(*each) for each in self._listeners.recent_uses(clock.monotonic()).items()]
        topics = self._topics
        accounts = [] if topics is None else list(topics.accounts())
        for start in range(0, len(accounts), _TOGETHER):
            if topics is not None:
                lines += map(topic_line, topics.recent_uses(accounts[start : start + _TOGETHER], clock.monotonic()))
            await asyncio.sleep(0)
        if self._peers is not None:
            # After the buckets: use that a peer reports in between is forgotten rather than charged twice.
            for identity in self._peers.peers():
                known = self._peers.known(identity)
                if known is not None:
                    for line in member_lines(known):
                        lines.append(line)
                        await asyncio.sleep(0)
        if not lines and not self._file_holds_something:
            return
        left_out = cut(lines)
        # All but the writing is done by now: a thread that makes text would contend for Python's lock.
        self._write = asyncio.ensure_future(asyncio.to_thread(write_usage, self._path, _now(), lines))
        try:
            await asyncio.shield(self._write)
        except (OSError, ValueError) as error:
            self._failed(f"recent usage can't be saved: {error} — make the folder of state.usage_path writable")
            return
        self._file_holds_something = bool(lines)
        if left_out:
            self._failed(
                f"recent usage in {self._path}: {left_out} lines would make the file too long. Their clients start with a"
                " full burst after a restart — lower quotas.max_entities"
            )
            return
        self.saves["success"] += 1
        if self._failing:
            _log.info("recent usage is saved again")
        self._failing = False

    def _failed(self, message: str) -> None:
        self.saves["failure"] += 1
        if not self._failing:
            _log.warning("%s", message)
        self._failing = True


def _now() -> Moment:
    return Moment(clock.boot_id(), clock.monotonic(), clock.wall())
