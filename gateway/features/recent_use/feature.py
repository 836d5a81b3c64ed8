"""Saves recent use every few seconds and at the end, and restores it at the start.

After a failed save or restore the gateway serves clients all the same: at worst, each of them gets one burst too many.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.feature import Feature
from gateway.features.recent_use.metrics import METRICS
from gateway.features.recent_use.usage_file import (
    BadUsageFileError,
    Usage,
    drop_excess,
    entity_line,
    listener_line,
    peer_lines,
    read_usage,
    topic_line,
    write_usage,
)
from gateway.files.path_faults import write_remedy
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.recent_use import (
    BucketUse,
    Moment,
    PeerTotals,
    RecentUse,
    TopicRateUse,
    entity_uses,
    restore_entity,
    seconds_between,
)
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps
from gateway.time_slices import in_slices

_T = TypeVar("_T")
_DatedUse = tuple[float, BucketUse | TopicRateUse | PeerTotals | tuple[str | None, RecentUse]]

_BATCH = 8
"""The buckets of a step."""

_PAUSE_FACTOR = 50.0
"""After a save that took t seconds, the next save waits for at least 50 t: saves take at most 2 % of the time."""

LAST_SAVE_SECONDS = 4.0
"""The time for the save at the end. A hung disk must not keep the features that stop after this one."""

_log = logging.getLogger("weir.state")


class RecentListeners(Protocol):
    """The rates of listeners, by name, and of the gateway (None)."""

    def recent_uses(self, now: float) -> Mapping[str | None, RecentUse]: ...

    def restore(self, listener: str | None, use: RecentUse, now: float) -> None: ...


class RecentTopics(Protocol):
    """The rates of topics; none while `quotas.topics` is not configured."""

    def accounts(self) -> Iterable[tuple[UsageKey, UsageAccount]]: ...

    def recent_uses(self, accounts: Iterable[tuple[UsageKey, UsageAccount]], now: float) -> Iterable[TopicRateUse]: ...

    def restore_uses(self, saved: Iterable[TopicRateUse], now: float) -> None: ...


class RecentPeers(Protocol):
    """The other gateways that share quotas with this one."""

    def peers(self) -> Iterable[str]: ...

    def totals_of(self, identity: str) -> PeerTotals | None: ...

    def restore_peer(self, saved: PeerTotals, at: float, now: float) -> None: ...


class RecentUsage(Feature[None]):
    """Saves the use of one gateway to the file at `path`, every `interval` seconds. `saves` counts by result.

    `peers` is None for a gateway that does not share its quotas. `may_save` is False once another process may have the file.
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
        may_save: Callable[[], bool] = lambda: True,
    ) -> None:
        self._peers = peers
        self._topics = topics
        self._restored: tuple[Usage, float] | None = None  # with the time of the save (monotonic)
        self.saves = saves
        self._path = path
        self._interval = interval
        self._engine = engine
        self._may_save = may_save
        self._listeners = listeners
        self._file_has_lines = True
        self._write: asyncio.Future[None] | None = None
        self._failing = False
        self._worked = 0.0  # seconds of CPU time that the last save took of the event loop

    async def restore(self) -> None:
        """Restore the last save. All quotas must be known by now, and no client may be served yet."""
        try:
            usage = await asyncio.to_thread(read_usage, self._path)
        except FileNotFoundError:
            self._file_has_lines = False
            return
        except (OSError, BadUsageFileError) as error:
            _log.warning("recent use can't be read, so every client starts with a full burst: %s: %s", self._path, error)
            return
        seconds = seconds_between(usage.at, _now())
        if seconds is None:
            _log.warning("recent use was saved too long ago, or in the future, and is not restored: %s", self._path)
            return
        now = clock.monotonic()
        restored = sum(
            restore_entity(self._engine_of(saved.kind), BucketUse(saved.kind, saved.tags, saved.use.aged(seconds)), now)
            for saved in usage.entities
        )
        for listener, use in usage.listeners.items():
            self._listeners.restore(listener, use.aged(seconds), now)
        self._restored = usage, now - seconds
        if self._peers is not None:
            for totals in usage.peers:
                self._peers.restore_peer(totals, now - seconds, now)
        _log.info("recent use restored", extra={"buckets": restored, "seconds_ago": round(seconds, 1)})
        if usage.damaged:
            _log.warning("%d lines of %s are damaged or missing and were skipped", usage.damaged, self._path)

    def _engine_of(self, kind: str) -> QuotaEngine:
        shadows = self._engine.shadows
        return shadows if shadows is not None and kind in shadows.kinds else self._engine

    def start(self, tasks: BackgroundTasks) -> None:
        if self._restored is not None and self._topics is not None:  # topics have meters only after their feature's start
            usage, saved_at = self._restored
            now = clock.monotonic()
            self._topics.restore_uses([each.aged(now - saved_at) for each in usage.topics], now)
        self._restored = None
        self._task = tasks.start("save recent use", self._run)

    async def stop(self) -> None:
        await super().stop()
        try:
            async with asyncio.timeout(LAST_SAVE_SECONDS):
                await self.save()
        except TimeoutError:
            self._failed(f"recent use is not saved after {LAST_SAVE_SECONDS:g} s — look for a hung disk at {self._path}")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(self._interval, self._worked * _PAUSE_FACTOR))
            await self.save()

    async def save(self) -> None:
        """Save the present use. Without any use the file is written only if the last save had some."""
        if self._write is not None and not self._write.done():  # begun by a `_run` that was cancelled
            await asyncio.wait([self._write])
        self._worked = 0.0
        at, uses = await in_slices(self._measured(self._uses()))
        lines = await in_slices(self._measured(self._lines(at, uses)))
        if (not lines and not self._file_has_lines) or not self._may_save():
            return
        left_out = drop_excess(lines)
        # The thread only writes: a thread that makes text would contend for Python's lock.
        self._write = asyncio.ensure_future(asyncio.to_thread(write_usage, self._path, at, lines))
        try:
            await asyncio.shield(self._write)
        except OSError as error:
            self._failed(f"recent use can't be saved: {error.strerror or error} — {write_remedy(error, self._path)}")
            return
        self._file_has_lines = bool(lines)
        if left_out:
            self._failed(
                f"recent use in {self._path}: {left_out} lines would make the file too long. Their clients start with a"
                " full burst after a restart — lower quotas.max_entities"
            )
            return
        self.saves["success"] += 1
        if self._failing:
            _log.info("recent use is saved again")
        self._failing = False

    def _measured(self, steps: Steps[_T]) -> Steps[_T]:
        """Add the CPU time of the steps to `_worked`, without the time between them."""
        while True:
            began = clock.busy()
            try:
                next(steps)
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                self._worked += clock.busy() - began
            yield

    def _uses(self) -> Steps[tuple[Moment, list[_DatedUse]]]:
        """All present use, each with its time (monotonic seconds), and the time after the last one."""
        found: list[_DatedUse] = []
        for engine in filter(None, (self._engine, self._engine.shadows)):
            buckets = list(engine.buckets())
            for start in range(0, len(buckets), _BATCH):
                now = clock.monotonic()
                found += [(now, use) for use in entity_uses(engine, buckets[start : start + _BATCH], now)]
                yield
        if self._topics is not None:
            accounts = iter(self._topics.accounts())
            while batch := list(islice(accounts, _BATCH)):
                now = clock.monotonic()
                found += [(now, use) for use in self._topics.recent_uses(batch, now)]
                yield
        now = clock.monotonic()
        found += [(now, each) for each in self._listeners.recent_uses(now).items()]
        # Peers come after the buckets: use that a peer reports meanwhile is then lost instead of charged twice.
        if self._peers is not None:
            for identity in self._peers.peers():
                if (totals := self._peers.totals_of(identity)) is not None:
                    found.append((now, totals))
                    yield
        return _now(), found

    @staticmethod
    def _lines(at: Moment, uses: Iterable[_DatedUse]) -> Steps[list[str]]:
        """The lines of the file. All ages in them are as of `at`."""
        lines: list[str] = []
        for since, use in uses:
            seconds = at.monotonic - since
            if isinstance(use, BucketUse):
                lines.append(entity_line(replace(use, use=use.use.aged(seconds))))
            elif isinstance(use, TopicRateUse):
                lines.append(topic_line(use.aged(seconds)))
            elif isinstance(use, PeerTotals):
                for line in peer_lines(use):
                    lines.append(line)
                    yield
            else:
                listener, recent = use
                lines.append(listener_line(listener, recent.aged(seconds)))
            yield
        return lines

    def _failed(self, message: str) -> None:
        self.saves["failure"] += 1
        if not self._failing:
            _log.warning("%s", message)
        self._failing = True


def _now() -> Moment:
    return Moment(clock.boot_id(), clock.monotonic(), clock.wall())
