"""The verdict on all brokers' volumes: OPEN, THROTTLE or PAUSE for producers."""

from dataclasses import dataclass
from enum import Enum

from gateway.features.volume_quotas.limits import Limit, Volume, VolumeUsage, throttle_of

MAX_KNOWN_VOLUMES = 10_000
"""Beyond so many volumes, brokers that no Metadata answer names are forgotten, so that garbage in the topic can't fill the
memory. A usage message may come before the first such answer, so these brokers count as well."""

MAX_WARNED = 1_000
"""The maximum number of brokers with a line in the log about an outdated message. The topic may have invented ids."""


class VolumeState(Enum):
    """The effect on producers. The cluster has the strictest state of all volumes."""

    OPEN = "OPEN"
    THROTTLE = "THROTTLE"  # a delay for each request
    PAUSE = "PAUSE"  # no request is forwarded


_STRICTNESS = {VolumeState.OPEN: 0, VolumeState.THROTTLE: 1, VolumeState.PAUSE: 2}


@dataclass(frozen=True, slots=True)
class VolumeRow:
    """A volume with its effective limits; `throttle` is 0.0 at the soft limit and 1.0 at the hard limit."""

    broker: int
    volume: Volume
    soft: Limit
    hard: Limit
    throttle: float

    @property
    def state(self) -> VolumeState:
        if self.throttle >= 1.0:
            return VolumeState.PAUSE
        return VolumeState.THROTTLE if self.throttle > 0.0 else VolumeState.OPEN

    def __str__(self) -> str:
        return f"broker {self.broker} {self.volume.name}: {self.volume.consumed} of {self.volume.capacity} bytes"


@dataclass(frozen=True, slots=True)
class VolumeVerdict:
    """The state of the cluster, and its cause.

    `throttle` is the largest of all volumes, 1.0 for PAUSE. `unknown` has the active brokers without fresh usage, each with
    `missing` or `stale`; the broker None stands for the list of brokers. `worst` is the volume with the largest throttle.
    """

    state: VolumeState
    throttle: float
    unknown: tuple[tuple[int | None, str], ...] = ()
    worst: VolumeRow | None = None
    rows: tuple[VolumeRow, ...] = ()

    @property
    def factor(self) -> float:
        """The share of the producers' rate in Strimzi's proposal, for events and metrics: 1.0 open, 0.0 paused."""
        return 1.0 - self.throttle

    @property
    def reason(self) -> str:
        """`hard_limit`, `unknown`, `soft_limit` or `recovered`."""
        if self.for_lack_of_data:
            return "unknown"
        if self.state is VolumeState.PAUSE:
            return "hard_limit"
        return "soft_limit" if self.state is VolumeState.THROTTLE else "recovered"

    @property
    def for_lack_of_data(self) -> bool:
        """True if only unknown usage makes the state this strict."""
        if self.state is not VolumeState.PAUSE or not self.unknown:
            return False
        return self.worst is None or self.worst.state is not VolumeState.PAUSE

    @property
    def why(self) -> str:
        reasons = [f"broker {broker}'s usage is {what}" if broker is not None else what for broker, what in self.unknown]
        if self.worst is not None and self.worst.throttle > 0.0:
            limit = f"hard limit {self.worst.hard}" if self.worst.throttle >= 1.0 else f"soft limit {self.worst.soft}"
            reasons.insert(0, f"{self.worst} is over its {limit}")
        if any(what == "stale" for _, what in self.unknown):  # the age is the gateway's time minus the publisher's
            reasons.append("check the publishers, and compare their clocks with this gateway's clock")
        return "; ".join(reasons) or "every volume is below its soft limit"


class ClusterVolumes:
    """The latest usage of each broker. Times are monotonic seconds. `when_unknown` is the state while usage is not known.

    Usage is stale `freshness` seconds after its capture. A broker is active until `freshness` seconds after the last Metadata
    answer that named it. So one answer without the broker does not let producers fill its disk.
    """

    def __init__(self, freshness: float, when_unknown: VolumeState) -> None:
        self.freshness = freshness
        self.when_unknown = when_unknown
        self._usages: dict[int, tuple[VolumeUsage, float]] = {}  # with the time of capture, the latest message at the end
        self._known = 0  # volumes in `_usages`
        self._captured: dict[int, float] = {}  # by the publisher's wall clock
        self._seen: dict[int, float] = {}  # each broker's last Metadata answer
        self._last_look = float("-inf")

    def configure(self, freshness: float, when_unknown: VolumeState) -> None:
        """The settings apply to the usage and brokers that are already known, too."""
        self.freshness = freshness
        self.when_unknown = when_unknown

    def take_brokers(self, active: frozenset[int], now: float) -> bool:
        """Take over the brokers of a Metadata answer. An empty answer says nothing about the cluster.

        Returns True if a broker was not active before.
        """
        if not active:
            return False
        self._last_look = now
        known = self._seen
        seen_at = known | dict.fromkeys(active, now)
        self._seen = {broker: seen for broker, seen in seen_at.items() if now - seen < self.freshness}
        return not active <= known.keys()

    def take_usage(self, usage: VolumeUsage, age: float, now: float) -> str | None:
        """Take over usage from `age` seconds ago; returns None, or the reason for skipping it or older usage.

        A publisher whose clock is ahead gives a negative age, which counts as 0. Otherwise later messages would be outdated.
        Nor does usage outdate any that was captured while this gateway's clock was ahead.
        """
        captured = self._captured.get(usage.broker)
        if captured is not None and usage.snapshot_at < captured <= usage.snapshot_at + age:
            return "outdated"
        self.forget(usage.broker)
        self._captured[usage.broker] = usage.snapshot_at + min(age, 0.0)
        self._usages[usage.broker] = usage, now - max(age, 0.0)
        self._known += len(usage.volumes)
        skipped = None
        while self._known > MAX_KNOWN_VOLUMES and (oldest := self._oldest_stranger()) is not None:
            self.forget(oldest)
            skipped = "too_many_brokers"
        return skipped

    def _oldest_stranger(self) -> int | None:
        """The broker that no Metadata answer names with the oldest message. The cluster bounds the number of the others."""
        return next((broker for broker in self._usages if broker not in self._seen), None)

    def captured(self, broker: int) -> float:
        """The time of a broker's latest usage by its publisher's clock, at most the time of arrival (wall clock, s)."""
        return self._captured[broker]

    def forget(self, broker: int) -> None:
        if broker in self._usages:
            usage, _ = self._usages.pop(broker)
            self._known -= len(usage.volumes)
            del self._captured[broker]

    def ages(self, now: float) -> dict[int, float]:
        """The seconds since each capture, by broker id, for the brokers of the last Metadata answer."""
        alive = sorted(broker for broker, seen in self._seen.items() if seen == self._last_look and broker in self._usages)
        return {broker: now - self._usages[broker][1] for broker in alive}

    def judge(self, now: float) -> VolumeVerdict:
        """The verdict now. A broker that is not active does not count.

        While no list of brokers is known, all fresh usage counts: a full disk pauses producers even with `OPEN`.
        """
        active = sorted(broker for broker, seen in self._seen.items() if now - seen < self.freshness)
        unknown: list[tuple[int | None, str]] = [] if active else [(None, "the list of active brokers is not known")]
        rows: list[VolumeRow] = []
        for broker in active or sorted(self._usages):
            usage, captured = self._usages.get(broker, (None, 0.0))
            # A broker that is down writes nothing and publishes nothing: its last usage holds until it is no longer active.
            seen = self._seen[broker] if active else self._last_look
            at = now if seen == self._last_look else seen
            if usage is None:
                unknown.append((broker, "missing"))
            elif at - captured < self.freshness:
                rows.extend(_rows(usage))
            elif active:
                unknown.append((broker, "stale"))
        return self._verdict(rows, unknown)

    def _verdict(self, rows: list[VolumeRow], unknown: list[tuple[int | None, str]]) -> VolumeVerdict:
        worst = max(rows, key=lambda row: row.throttle, default=None)
        state = VolumeState.OPEN if worst is None else worst.state
        if unknown:
            state = max(state, self.when_unknown, key=_STRICTNESS.__getitem__)
        throttle = 1.0 if state is VolumeState.PAUSE else worst.throttle if worst is not None else 0.0
        return VolumeVerdict(state, throttle, tuple(unknown), worst, tuple(rows))


def _rows(usage: VolumeUsage) -> list[VolumeRow]:
    rows = []
    for volume in usage.volumes:
        soft, hard = volume.soft or usage.soft, volume.hard or usage.hard
        rows.append(VolumeRow(usage.broker, volume, soft, hard, throttle_of(volume, soft, hard)))
    return rows
