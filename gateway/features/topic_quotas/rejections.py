"""Folds rejections: for a topic, reason and client there are at most two log lines and one event in `FOLD_SECONDS`."""

import logging
from dataclasses import dataclass

from gateway.events import TopicRejected
from gateway.features.topic_quotas.produce_inspector import QUOTA, Rejection
from gateway.observer import Outlet
from gateway.quotas.entity import OTHER, short_name
from gateway.steps import Steps

FOLD_SECONDS = 10.0
MAX_FOLDS = 1_000
"""Combinations of topic, reason and client that are reported separately. All further ones are reported together."""

_log = logging.getLogger("weir.topics")

_Key = tuple[str, str, str, str, bool]


@dataclass(slots=True)
class _Fold:
    """Rejections that differ only in time, size, and the connection and rates of `latest`."""

    since: float
    first_ms: int
    latest: Rejection
    last_ms: int = 0
    count: int = 0
    size: int = 0
    logged_count: int = 0
    logged_size: int = 0


class RejectionFolder:
    """Logs the first rejection of each kind at once, and the others in one line after `FOLD_SECONDS`."""

    def __init__(self, outlet: Outlet) -> None:
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
        fold = self._folds.setdefault(key, _Fold(now, wall_ms, rejection))
        fold.latest, fold.last_ms = rejection, wall_ms
        fold.count += 1
        fold.size += rejection.size
        if fold.count == 1:
            _log_fold(key, fold)

    def flush(self, now: float) -> Steps[None]:
        """Report the folds that are older than `FOLD_SECONDS`. The caller calls this once a second.

        Each step reports one fold, and the last flush may begin before the steps of another one have ended.
        """
        for key in list(self._folds):
            fold = self._folds.get(key)
            if fold is None or now - fold.since < FOLD_SECONDS:
                continue
            del self._folds[key]
            if fold.count > fold.logged_count:
                _log_fold(key, fold)
            self._outlet.notify(self._event(key, fold))
            yield

    def _event(self, key: _Key, fold: _Fold) -> TopicRejected:
        topic, reason, user, client_id, enforced = key
        latest = fold.latest
        return TopicRejected(
            time_ms=fold.first_ms,
            last_ms=fold.last_ms,
            gateway=self._outlet.gateway,
            topic=topic,
            reason=reason,
            user=user,
            client_id=client_id,
            address=latest.origin.address or None,
            broker=latest.origin.broker,
            count=fold.count,
            amount=float(fold.size),
            rate=latest.rate,
            limit=latest.limit,
            total_rate=latest.total_rate,
            total_limit=latest.total_limit,
            enforced=enforced,
        )


def _log_fold(key: _Key, fold: _Fold) -> None:
    topic, reason, user, client_id, enforced = key
    count, size = fold.count - fold.logged_count, fold.size - fold.logged_size
    fold.logged_count, fold.logged_size = fold.count, fold.size
    result = "not appended" if enforced else "would not have been appended"
    cause = f" ({fold.latest.rate:.0f} of {fold.latest.limit:.0f} bytes/s)" if reason == QUOTA else " (by the broker)"
    _log.warning(
        "topic %s: %d %s of %d bytes %s: %s%s",
        topic, count, "request" if count == 1 else "requests", size, result, reason, cause,
        extra={"topic": topic, "why": reason, "user": user, "client_id": client_id},
    )  # fmt: skip
