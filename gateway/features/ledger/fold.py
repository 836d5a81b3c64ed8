"""Folds the throttle decisions of an interval: one event for each entity, API and broker."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.events import VOLUME, ThrottleEvent
from gateway.features.ledger.minute_sampler import quota_of
from gateway.proxy.wire import NO_API, Origin
from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.shadows import ShadowBucket
from gateway.throttle_slots import throttle_slot
from protocol.api_keys import APIS, ApiKey

MAX_FOLDS = 10_000
"""The maximum number of events in an interval. Further decisions are counted as dropped."""


@dataclass(eq=False, slots=True)
class Fold:
    """The decisions of one interval with the same key. `first` and `last` are monotonic. `slots` are `throttle_slot`s."""

    first: float
    last: float
    address: str = ""
    count: int = 0
    throttle_ms: int = 0
    longest_ms: int = 0
    early_count: int = 0
    early_ms: int = 0
    early_max_ms: int = 0
    amount: float = 0.0
    rate: float | None = None
    limit: float | None = None
    slots: Counter[int] = field(default_factory=Counter)


_Key = tuple[Bucket, int, int | None, bool, bool]
"""Bucket, API key, the broker's node id, True if the quota is enforced, True for a delay by the volume quota."""


class ThrottleFolds:
    """The `Recorder` of all sessions of a process. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._folds: dict[_Key, Fold] = {}
        self._latest: dict[tuple[Bucket, int | None], Fold] = {}
        self.dropped = 0

    def throttled(self, origin: Origin, api_key: int, bucket: Bucket, amount: float, verdict: QuotaVerdict, now: float) -> None:
        if isinstance(bucket, ShadowBucket):
            return  # see ShadowSampler
        delay, enforced = verdict
        fold = self._decision((bucket, api_key, origin.broker, enforced, False), origin, delay, now)
        if fold is None:
            return
        fold.amount += amount
        if fold.longest_ms == throttle_time_ms(delay):
            fold.rate = bucket.rate_of_all(now)
            fold.limit = bucket.resolution.limit

    def delayed_for_volume(self, origin: Origin, bucket: Bucket, amount: int, seconds: float, now: float) -> None:
        fold = self._decision((bucket, _PRODUCE, origin.broker, True, True), origin, seconds, now)
        if fold is not None:
            fold.amount += amount

    def early(self, origin: Origin, bucket: Bucket, seconds: float, now: float) -> None:
        """Fold a request that came too early into the entity's last decision of the interval, or into a fold of its own."""
        fold = self._latest.get((bucket, origin.broker)) or self._fold((bucket, NO_API, origin.broker, True, False), now)
        if fold is None:
            return
        milliseconds = throttle_time_ms(seconds)
        fold.last = now
        fold.early_count += 1
        fold.early_ms += milliseconds
        fold.early_max_ms = max(fold.early_max_ms, milliseconds)

    def take(self, gateway: str, monotonic: float, wall: float) -> Iterator[ThrottleEvent]:
        """The events of the interval that ends with the first one; `monotonic` and `wall` are the present time in seconds."""
        folds, self._folds, self._latest = self._folds, {}, {}
        for key, fold in folds.items():
            yield _event(gateway, key, fold, wall - monotonic)

    def _decision(self, key: _Key, origin: Origin, seconds: float, now: float) -> Fold | None:
        fold = self._fold(key, now)
        if fold is None:
            return None
        milliseconds = throttle_time_ms(seconds)
        self._latest[key[0], origin.broker] = fold
        fold.last = now
        fold.count += 1
        fold.throttle_ms += milliseconds
        fold.slots[throttle_slot(milliseconds)] += 1
        if milliseconds >= fold.longest_ms:
            fold.longest_ms = milliseconds
            fold.address = origin.address
        return fold

    def _fold(self, key: _Key, now: float) -> Fold | None:
        fold = self._folds.get(key)
        if fold is None:
            if len(self._folds) >= MAX_FOLDS:
                self.dropped += 1
                return None
            fold = self._folds[key] = Fold(now, now)
        return fold


_PRODUCE = int(ApiKey.PRODUCE)


def _event(gateway: str, key: _Key, fold: Fold, offset: float) -> ThrottleEvent:
    bucket, api_key, broker, enforced, for_volumes = key
    resolution = bucket.resolution
    tags = resolution.tags
    return ThrottleEvent(
        time_ms=int((fold.first + offset) * 1000),
        last_ms=int((fold.last + offset) * 1000),
        gateway=gateway,
        kind=VOLUME if for_volumes else bucket.kind.name,
        user=tags.user,
        client_id=tags.client_id,
        group=tags.group,
        quota=None if for_volumes else quota_of(resolution),
        address=fold.address or None,
        broker=broker,
        api=None if api_key == NO_API else APIS[api_key].name,
        count=fold.count,
        amount=float(fold.amount),
        rate=fold.rate,
        limit=fold.limit,
        throttle_ms=fold.throttle_ms,
        throttle_max_ms=fold.longest_ms,
        throttle_slots=dict(fold.slots),
        early_count=fold.early_count,
        early_ms=fold.early_ms,
        early_max_ms=fold.early_max_ms,
        enforced=enforced,
    )
