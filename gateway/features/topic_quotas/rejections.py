"""What was not appended to topics, folded: a line of the log and an event for each topic, reason and client, never a flood."""

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
"""Topics, reasons and clients that are told apart within that time; those past it are told of together."""

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
    """Of these bytes, those that no line has told of."""
    logged: int = 0
    rate: float = 0.0
    limit: float = 0.0
    total_rate: float = 0.0
    address: str = ""
    broker: int | None = None


class RejectionFolder:
    """The first of a kind is logged at once, the rest every `FOLD_SECONDS` in one line. `outlet` gets the events."""

    def __init__(
        self,
        quotas: Callable[[], TopicQuotas],
        outlet: Outlet,
    ) -> None:
        self._quotas = quotas
        self._outlet = outlet
        self._folds: dict[_Key, _Fold] = {}

    def note(self, rejection: Rejection, now: float) -> None:
        """One partition's or request's bytes of a topic. `now` is monotonic."""
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
            self._say(key, fold)

    def flush(self, now: float) -> None:
        """To be called once a second: tell of what has been folded for long enough."""
        for key, fold in list(self._folds.items()):
            if now - fold.since < FOLD_SECONDS:
                continue
            del self._folds[key]
            if fold.count > fold.logged:
                self._say(key, fold)
            self._outlet.notify(self._event(key, fold))

    def _say(self, key: _Key, fold: _Fold) -> None:
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
