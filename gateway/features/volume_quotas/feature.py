"""Volume quotas: publishes disk usage to a topic, reads the topic, and sets the producers' gate.

Each gateway decides for itself, and all gateways read the same topic.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.cluster.brokers import Address
from gateway.cluster.client import BadRecordError, ClusterError
from gateway.cluster.metadata import REFRESH_SECONDS, ClusterMetadata
from gateway.cluster.record_batches import Headers
from gateway.cluster.topic_log import TopicLog
from gateway.cluster.topic_spec import TopicSpec
from gateway.events import VOLUME, VolumeStateChanged
from gateway.feature import Feature
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.metrics import METRICS
from gateway.features.volume_quotas.report import VolumesReport, volumes_json
from gateway.features.volume_quotas.rules import MAX_WARNED, ClusterVolumes, VolumeState, VolumeVerdict
from gateway.features.volume_quotas.sources import LogDirs, VolumeSource
from gateway.features.volume_quotas.usage_message import encode_usage, parse_broker, parse_usage
from gateway.observer import Outlet
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.snapshot import ThrottleTotals

JUDGE_SECONDS = 0.25
"""The time between two verdicts."""

SPEED_UP = 6
"""While producers are throttled or paused, usage is published six times as often."""

LEARN_SECONDS = 5.0
"""The maximum time that a watch reads the topic and the brokers before its first verdict."""

HOLD_SECONDS = 0.5
"""Producers that wait for the first verdict are looked at again after this time. The verdict ends their wait at once."""

_LEARN_STEP_SECONDS = 0.05

_RETRY_SECONDS = 1.0

TOPIC_CONFIGS = {
    # Brokers compact only closed segments: with these settings old usage is gone after some ten minutes.
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "3600000",
}

_log = logging.getLogger("weir.volumes")

_LEAST_CHANGE = 0.05  # of the factor, for an event
_NOTABLE_FALL = 0.5  # of the delay: producers that wait are looked at again


def topic_spec(config: VolumesConfig) -> TopicSpec:
    return TopicSpec(config.topic, configs=TOPIC_CONFIGS)


async def publish_usage(source: VolumeSource, log: TopicLog, config: VolumesConfig, seconds: float) -> bool:
    """Publish the usage of the volumes once, for at most `seconds`, apart from the time to publish.

    Returns False, with the cause in the log, if nothing was published.
    """
    published = False
    async with aclosing(source.observe(config.hard.limit(), config.soft.limit(), seconds)) as found:
        async for usages in found:
            if not usages:
                continue
            try:
                await log.publish([encode_usage(usage) for usage in usages])
            except ClusterError:
                return False
            published = True
    return published


class VolumeWatch:
    """Reads usage, publishes it if `source` is `log_dirs`, and sets the producers' gate.

    `on_release` is called at the end of a pause, and if the delay falls to a half or less at once. `outlet` gets a
    `VolumeStateChanged` for the first verdict, a change of state or `enforce`, and a change of the factor by 0.05 or more. At
    the end, `outlet` gets a last event if the gate opens.
    """

    def __init__(
        self,
        config: VolumesConfig,
        metadata: ClusterMetadata,
        engine: QuotaEngine,
        gate: ProduceGate,
        outlet: Outlet,
        *,
        on_release: Callable[[], None] = lambda: None,
        replaces: "VolumeWatch | None" = None,
    ) -> None:
        """`replaces` is the watch that was in effect so far."""
        self.config = config
        self._outlet = outlet
        self._engine = engine
        self._gate = gate
        self._on_release = on_release
        self._metadata = metadata
        self._log = TopicLog(metadata.connect, topic_spec(config), self._on_record)
        self._volumes = ClusterVolumes(config.freshness_seconds, VolumeState(config.when_unknown))
        self._skipped: Counter[str] = Counter()
        self._outdated: set[int] = set()
        self._wake_publisher = asyncio.Event()
        self._source = LogDirs(metadata.connect(), self._wake_publisher) if config.source == "log_dirs" else None
        self._verdict = VolumeVerdict(VolumeState.OPEN, 0.0)
        self._reported, self._reported_enforced = self._verdict, True
        if replaces is not None:
            self._reported, self._reported_enforced = replaces._reported, replaces._reported_enforced
        self._begun = False
        self._learn_until = float("inf")
        self._handed_over = False

    async def run(self, replaced_task: asyncio.Task[None] | None = None) -> None:
        """Watch until cancelled, then `end`. A failure leaves the gate as it is.

        `replaced_task` is the task of the watch that this one replaces. It is already cancelled.
        """
        try:
            if replaced_task is not None:
                await asyncio.wait([replaced_task])
            with self._metadata.subscribe(self._note_brokers, on_failure=self._note_failure, interval=self._interval):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._log.run(), name="read the volume usage topic")
                    if self._source is not None:
                        group.create_task(self._publish(self._source), name="publish volume usage")
                    await self._learn()
                    while True:
                        self._judge()
                        await asyncio.sleep(JUDGE_SECONDS)
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Open the gate and report this, unless `hand_over` was called. Does not wait for this watch's tasks."""
        if self._handed_over:
            return
        if self._reported.throttle > 0.0:
            before, self._reported = self._reported, VolumeVerdict(VolumeState.OPEN, 0.0)
            self._notify(before, self._reported, enforced=self._reported_enforced)
        self._set_gate(0.0, paused=False)

    async def _learn(self) -> None:
        """Leave the gate as it is until brokers and usage are known, or the config changes.

        A verdict without them may pause producers although the disks are fine, or end a pause although a disk is full.
        """
        config = self.config
        self._learn_until = min(self._learn_until, clock.monotonic() + LEARN_SECONDS)  # also for a watch that fails soon
        while self.config is config and (now := clock.monotonic()) < self._learn_until:
            self._verdict = verdict = self._volumes.judge(now)
            # Agents publish at times of their own: usage that the topic does not have may come late.
            awaited = [broker for broker, _ in verdict.unknown if broker is None or self._source is not None]
            if self._log.status.caught_up and (not awaited or verdict.reason == "hard_limit"):
                return
            await asyncio.sleep(_LEARN_STEP_SECONDS)

    def hand_over(self) -> None:
        """Leave the gate as it is in `end`, because another watch follows."""
        self._handed_over = True

    def reconfigure(self, config: VolumesConfig) -> bool:
        """Apply a changed section. Returns False if its source or topic differs, because these need a new watch."""
        if (config.source, config.topic) != (self.config.source, self.config.topic):
            return False
        self.config = config
        self._volumes.configure(config.freshness_seconds, VolumeState(config.when_unknown))
        self._wake_publisher.set()
        return True

    def report(self) -> VolumesReport:
        status, source, now = self._log.status, self._source, clock.monotonic()
        return VolumesReport(
            log=status,
            age=status.publication_age(now),
            source_problem="" if source is None else source.problem,
            source_errors_total=0 if source is None else source.errors_total,
            verdict=self._verdict,
            config=self.config,
            gate=self._gate,
            ages=self._volumes.ages(now),
            skipped=dict(self._skipped) | status.skipped,
        )

    def _interval(self) -> float:
        return min(REFRESH_SECONDS, self.config.freshness_seconds / 4)

    def _note_brokers(self, brokers: Mapping[int, Address]) -> None:
        if self._volumes.take_brokers(frozenset(brokers), clock.monotonic()) and self._begun:
            self._wake_publisher.set()  # a new broker's missing usage would pause producers

    def _note_failure(self, error: ClusterError) -> None:
        _log.warning("the active brokers can't be asked for: %s", error, extra={"reason": "active_brokers"})

    def _on_record(self, key: bytes | None, value: bytes | None, _headers: Headers) -> None:
        try:
            broker = parse_broker(key)
            if value is None:
                self._volumes.forget(broker)
                return
            usage = parse_usage(broker, value)
        except BadRecordError as error:
            self._skipped[error.reason] += 1
            _log.warning("a usage message is skipped: %s", error, extra={"reason": f"usage message: {error.reason}"})
            return
        skipped = self._volumes.take_usage(usage, clock.wall() - usage.snapshot_at, clock.monotonic())
        if skipped is not None:
            self._skipped[skipped] += 1
        if skipped == "outdated" and broker not in self._outdated and len(self._outdated) < MAX_WARNED:
            self._outdated.add(broker)
            _log.warning(
                "a usage message of broker %d from %s is skipped, because newer usage (%s) is known."
                " If this persists, synchronise the clocks of the publishers%s",
                broker,
                clock.iso(usage.snapshot_at),
                clock.iso(self._volumes.captured(broker)),
                "" if self._source is None else "; this gateway is a publisher as well",
            )

    async def _publish(self, source: LogDirs) -> None:
        try:
            while True:
                self._wake_publisher.clear()
                began = clock.monotonic()
                published = await publish_usage(source, self._log, self.config, self._publication_interval())
                interval = self._publication_interval() if published else min(self._publication_interval(), _RETRY_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(began + interval - clock.monotonic()):
                        await self._wake_publisher.wait()
        finally:
            await source.close()
            await self._log.close()

    def _publication_interval(self) -> float:
        interval = self.config.publish_interval_ms / 1000
        if self._verdict.state is VolumeState.OPEN:
            return interval
        return max(interval / SPEED_UP, min(interval, _RETRY_SECONDS))

    def _judge(self) -> None:
        now = clock.monotonic()
        previous, verdict = self._verdict, self._volumes.judge(now)
        self._verdict = verdict
        if previous.state is VolumeState.OPEN and verdict.state is not VolumeState.OPEN:
            self._wake_publisher.set()  # the publisher waits for the long interval of an open gate
        enforce = self.config.enforce
        delay = verdict.throttle * self.config.max_delay_ms / 1000 if enforce else 0.0
        self._set_gate(delay, paused=enforce and verdict.state is VolumeState.PAUSE)
        if verdict.state is not previous.state or verdict.unknown != previous.unknown or not self._begun:
            self._log_state(previous, verdict)
        changed = verdict.state is not self._reported.state or abs(verdict.throttle - self._reported.throttle) >= _LEAST_CHANGE
        if changed or enforce is not self._reported_enforced or not self._begun:
            before, self._reported, self._reported_enforced = self._reported, verdict, enforce
            self._notify(before, verdict, enforced=enforce)
        self._begun = True

    def _set_gate(self, delay: float, *, paused: bool) -> None:
        gate = self._gate
        closes = delay > 0.0 and not gate.closed
        releases = (gate.paused and not paused) or (gate.closed and delay <= gate.delay * _NOTABLE_FALL)
        gate.delay, gate.paused, gate.learning = delay, paused, False
        if closes:
            self._engine.recall()
        if releases:
            self._on_release()

    def _notify(self, before: VolumeVerdict, now: VolumeVerdict, *, enforced: bool) -> None:
        worst = now.worst
        self._outlet.notify(
            VolumeStateChanged(
                time_ms=self._outlet.now_ms(),
                gateway=self._outlet.gateway,
                state=now.state.value,
                previous=before.state.value,
                factor=now.factor,
                reason=now.reason,
                broker=None if worst is None else worst.broker,
                volume=None if worst is None else worst.volume.name,
                capacity_bytes=None if worst is None else worst.volume.capacity,
                consumed_bytes=None if worst is None else worst.volume.consumed,
                enforced=enforced,
            )
        )

    def _log_state(self, before: VolumeVerdict, verdict: VolumeVerdict) -> None:
        level = logging.INFO if verdict.state is VolumeState.OPEN and not verdict.unknown else logging.WARNING
        _log.log(
            level,
            "volumes: %s%s: %s",
            verdict.state.value,
            f" (was {before.state.value})" if self._begun and before.state is not verdict.state else "",
            verdict.why,
            extra={
                "state": verdict.state.value,
                "factor": round(verdict.factor, 3),
                "brokers_unknown": [broker for broker, _ in verdict.unknown if broker is not None],
                "volume_reason": verdict.reason,
            },
        )


class VolumeQuotas(Feature[VolumesConfig | None]):
    """Runs a `VolumeWatch` while `quotas.volumes` is configured. `reconsider` is called when producers may send more."""

    page = "volumes"
    metrics = METRICS

    def __init__(
        self,
        section: VolumesConfig | None,
        metadata: ClusterMetadata,
        engine: QuotaEngine,
        gate: ProduceGate,
        outlet: Outlet,
        reconsider: Callable[[], None],
    ) -> None:
        self._section = section
        self._watched = metadata, engine, gate, outlet
        self._gate = gate
        self._reconsider = reconsider
        self._tasks: BackgroundTasks | None = None
        self._watch: VolumeWatch | None = None

    async def restore(self) -> None:
        """Let producers wait until the first verdict. No client is connected yet."""
        section, gate = self._section, self._gate
        if section is not None and section.enforce:
            gate.learning = True
            if section.when_unknown == VolumeState.PAUSE.value:
                gate.delay, gate.paused = HOLD_SECONDS, True

    def not_ready(self) -> str | None:
        return "the disk usage of the brokers is not known yet" if self._gate.learning else None

    def start(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        if self._section is not None:
            self._begin(self._section, tasks)

    def apply(self, section: VolumesConfig | None) -> list[str]:
        before, self._section = self._section, section
        if section == before or self._tasks is None:
            return []
        if section is not None and self._watch is not None and self._watch.reconfigure(section):
            return []
        watch, ending = self._watch, self._task
        self._watch = self._task = None
        if ending is not None and watch is not None:
            if section is not None:
                watch.hand_over()
            ending.cancel()
        if section is not None:
            self._begin(section, self._tasks, None if ending is None else ending.task, watch)
        return []

    def report(self) -> VolumesReport | None:
        return None if self._watch is None else self._watch.report()

    def throttle_totals(self) -> Sequence[ThrottleTotals]:
        report = self.report()
        if report is None:
            return ()
        totals = report.gate.totals
        return (ThrottleTotals(VOLUME, tuple(totals.counts), totals.seconds),)

    def as_json(self, report: VolumesReport) -> dict[str, Any]:
        return volumes_json(report)

    def _begin(
        self,
        section: VolumesConfig,
        tasks: BackgroundTasks,
        replaced_task: asyncio.Task[None] | None = None,
        replaces: VolumeWatch | None = None,
    ) -> None:
        self._watch = watch = VolumeWatch(section, *self._watched, on_release=self._reconsider, replaces=replaces)
        self._task = tasks.start("watch the cluster's volumes", lambda: watch.run(replaced_task), watch.end)
