"""Throttle decisions, folded: one event per entity, API and broker however often it went over."""

from collections import Counter

from gateway.events import ThrottleEvent, throttle_slot
from gateway.proxy.wire import Origin
from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.meter import throttle_time_ms
from protocol.api_keys import APIS, ApiKey

VOLUME = "volume"
"""The kind of a delay that is not an entity's own quota's."""

MAX_FOLDS = 10_000
"""Events per interval; what comes past that is counted as dropped."""


class Fold:
    """The decisions of one interval that differ in nothing but when, from where, how much and how long."""

    __slots__ = (
        "address",
        "amount",
        "count",
        "early_count",
        "early_max_ms",
        "early_ms",
        "first",
        "last",
        "limit",
        "longest_ms",
        "rate",
        "slots",
        "throttle_ms",
    )

    def __init__(self, now: float) -> None:
        self.first = self.last = now
        self.address = ""
        self.count = self.throttle_ms = self.longest_ms = 0
        self.early_count = self.early_ms = self.early_max_ms = 0
        self.amount = 0.0
        self.rate: float | None = None
        self.limit: float | None = None
        self.slots: Counter[int] = Counter()


_Key = tuple[Bucket, int, int | None, bool, bool]
"""Bucket, API key, the broker's node id, whether quotas are enforced, whether it was for the volumes' sake."""


class ThrottleFolds:
    """The `Recorder` of all sessions of a process. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._folds: dict[_Key, Fold] = {}
        self._latest: dict[tuple[Bucket, int | None], Fold] = {}
        self.dropped = 0

    def throttled(self, origin: Origin, api_key: int, bucket: Bucket, amount: float, verdict: QuotaVerdict, now: float) -> None:
        delay, enforced = verdict
        fold = self._decision((bucket, api_key, origin.broker, enforced, False), origin, delay, now)
        if fold is None:
            return
        fold.amount += amount
        if fold.longest_ms == throttle_time_ms(delay):
            fold.rate = bucket.rate_of_all(now)
            fold.limit = bucket.resolution.limit

    def held(self, origin: Origin, bucket: Bucket, amount: int, seconds: float, now: float) -> None:
        """Fold one delay for the volumes' sake."""
        fold = self._decision((bucket, _PRODUCE, origin.broker, True, True), origin, seconds, now)
        if fold is not None:
            fold.amount += amount

    def early(self, origin: Origin, bucket: Bucket, seconds: float, now: float) -> None:
        """Fold one request that came too early: to the entity's last decision, or by itself if that has gone out."""
        fold = self._latest.get((bucket, origin.broker)) or self._fold((bucket, _NO_API, origin.broker, True, False), now)
        if fold is None:
            return
        milliseconds = throttle_time_ms(seconds)
        fold.last = now
        fold.early_count += 1
        fold.early_ms += milliseconds
        fold.early_max_ms = max(fold.early_max_ms, milliseconds)

    def take(self, gateway: str, monotonic: float, wall: float) -> list[ThrottleEvent]:
        """The events of the interval that ends now, whose time on the wall's clock is `wall` seconds."""
        folds, self._folds, self._latest = self._folds, {}, {}
        return [_event(gateway, key, fold, wall - monotonic) for key, fold in folds.items()]

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
            fold = self._folds[key] = Fold(now)
        return fold


_NO_API = -1
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
        quota=None if for_volumes or resolution.entity is None else str(resolution.entity),
        address=fold.address or None,
        broker=broker,
        api=None if api_key == _NO_API else APIS[api_key].name,
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
