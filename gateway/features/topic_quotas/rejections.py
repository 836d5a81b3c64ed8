"""Folds rejections: a topic, reason and client get at most two log lines and one event in `FOLD_SECONDS`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.events import TopicRejected
from gateway.features.topic_quotas.produce_inspector import QUOTA, Rejection
from gateway.features.topic_quotas.rules import TopicQuotas
from gateway.observer import Outlet
from gateway.quotas.entity import OTHER, short_name

FOLD_SECONDS = 10.0
MAX_FOLDS = 1_000
"""Combinations of topic, reason and client that are reported separately. All further ones are reported together."""

_log = logging.getLogger("weir.topics")

_Key = tuple[str, str, str, str, bool]


@dataclass(slots=True)
class _Fold:
    since: float
    first_ms: int
    last_ms: int = 0
    count: int = 0
    size: int = 0
    unlogged: int = 0
    """The bytes of `size` that no log line has reported."""
    logged: int = 0
    rate: float = 0.0
    limit: float = 0.0
    total_rate: float = 0.0
    address: str = ""
    broker: int | None = None


class RejectionFolder:
    """Logs the first rejection of each kind at once, and the others in one line after `FOLD_SECONDS`."""

    def __init__(
        self,
        quotas: Callable[[], TopicQuotas],
        outlet: Outlet,
    ) -> None:
        self._quotas = quotas
        self._outlet = outlet
        self._folds: dict[_Key, _Fold] = {}

    def note(self, rejection: Rejection, now: float) -> None:
        """Add a rejection. `now` is monotonic."""
        client = rejection.client
        names = short_name(client.user), short_name(client.client_id)
        key = (rejection.topic, rejection.reason, *names, rejection.enforced)
        if key not in self._folds and len(self._folds) >= MAX_FOLDS:
            key = (OTHER, rejection.reason, OTHER, OTHER, rejection.enforced)
        wall_ms = self._outlet.now_ms()
        fold = self._folds.get(key)
        if fold is None:
            fold = self._folds[key] = _Fold(now, wall_ms)
        fold.last_ms = wall_ms
        fold.count += 1
        fold.size += rejection.size
        fold.address, fold.broker = rejection.origin.address, rejection.origin.broker
        fold.unlogged += rejection.size
        quotas = self._quotas()
        fold.rate = rejection.use.measure(now)
        fold.limit = quotas.threshold(rejection.use.name)
        fold.total_rate = quotas.rate(now)
        if fold.count == 1:
            self._log_fold(key, fold)

    def flush(self, now: float) -> None:
        """Report the folds that are older than `FOLD_SECONDS`. The caller calls this once a second."""
        for key, fold in list(self._folds.items()):
            if now - fold.since < FOLD_SECONDS:
                continue
            del self._folds[key]
            if fold.count > fold.logged:
                self._log_fold(key, fold)
            self._outlet.notify(self._event(key, fold))

    def _log_fold(self, key: _Key, fold: _Fold) -> None:
        topic, reason, user, client_id, enforced = key
        count = fold.count - fold.logged
        fold.logged = fold.count
        size, fold.unlogged = fold.unlogged, 0
        what = "not appended" if enforced else "would not have been appended"
        how_far = f" ({fold.rate:.0f} of {fold.limit:.0f} bytes/s)" if reason == QUOTA else " (by the broker)"
        _log.warning(
            "topic %s: %d %s of %d bytes %s: %s%s",
            topic, count, "request" if count == 1 else "requests", size, what, reason, how_far,
            extra={"topic": topic, "why": reason, "user": user, "client_id": client_id},
        )  # fmt: skip

    def _event(self, key: _Key, fold: _Fold) -> TopicRejected:
        topic, reason, user, client_id, enforced = key
        return TopicRejected(
            time_ms=fold.first_ms,
            last_ms=fold.last_ms,
            gateway=self._outlet.gateway,
            topic=topic,
            reason=reason,
            user=user,
            client_id=client_id,
            address=fold.address or None,
            broker=fold.broker,
            count=fold.count,
            amount=float(fold.size),
            rate=fold.rate,
            limit=fold.limit,
            total_rate=fold.total_rate,
            total_limit=self._quotas().settings.total,
            enforced=enforced,
        )
