"""The engine's figures for metrics, tables and the admin API."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import add
from typing import Any, Final

from gateway.steps import Steps

EXEMPT: Final = " (exempt)"
"""The end of a row's `level` if the entity is exempt."""

EPISODE_QUIET_SECONDS: Final = 60.0

HOLD_SECONDS: Final = 5.0
"""An entity at its quota is throttled many times a second. Pages show it as throttled for this time after each throttle."""

MAX_ADDRESSES: Final = 16
"""The addresses that a bucket remembers of an episode."""

THROTTLE_BOUNDS: tuple[float, ...] = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)


BucketName = tuple[str, str, str, str, str, str, bool]
"""Kind, user, client-id, address, group and broker, as in metrics; True for a shadow limit."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One bucket: an entity's use of one quota kind. Rates are in the kind's unit per second, times in seconds.

    - `user`, `client_id`, `ip` and `group` are the bucket's tags: "" if the level does not name one.
    - `broker` is the node id of the only broker that the bucket is for, or `bootstrap`. "" is a bucket of the whole cluster.
    - `level` is the configured entity of the limit, such as `user=alice, client-id=<default>`; `source` is `file` or `api`.
      Both are "" without a limit. The level of an exempt entity ends with ` (exempt)`.
    - `limit`: None is unlimited.
    - `rate` is the use through this gateway. `used_ratio` is KIP-13's fraction of the quota that all gateways have used.
      Throttling begins at 1.0. A group that shares a capacity has a fraction of its present share.
    - `tokens`: None under `algorithm: window`.
    - `unenforced_total` counts those of `throttled_total` that delayed nobody, because the quotas were not enforced.
    - `early_total` counts the requests that came before the throttle time was over; `early_seconds_*` is how early at least.
    - `throttle_left` is the throttle time of a request that arrives now.
    - `throttled_seconds` is the time since the first throttle of the current episode. It is None for an entity that was not
      throttled lately.
    - `unthrottled_seconds` is the time since the last throttle time was over, and 0.0 before. It is None for an entity that was
      not throttled lately, and while quotas are not enforced.
    - `addresses` are the addresses of the last episode's throttled connections, without ports, the latest last.
    - `shadow`: the limit delays nobody. Use that an enforced or unlimited bucket measures is in this row as well.
    """

    kind: str
    user: str
    client_id: str
    ip: str
    level: str
    source: str
    limit: float | None
    rate: float
    used_ratio: float
    tokens: float | None
    amount_total: int
    throttled_total: int
    unenforced_total: int
    throttle_seconds_total: float
    early_total: int
    early_seconds_total: float
    early_seconds_max: float
    throttle_left: float
    connections: int
    throttled_seconds: float | None
    unthrottled_seconds: float | None
    addresses: tuple[str, ...]
    group: str = ""
    broker: str = ""
    shadow: bool = False

    @property
    def bucket(self) -> BucketName:
        """The same for the rows of one bucket, of all times and processes."""
        return self.kind, self.user, self.client_id, self.ip, self.group, self.broker, self.shadow


def _known(choose: Callable[[float, float], float]) -> Callable[[float | None, float | None], float | None]:
    return lambda one, other: one if other is None else other if one is None else choose(one, other)


_ROW: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "limit": _known(max),
    "rate": add,
    "used_ratio": max,
    "tokens": _known(min),
    "amount_total": add,
    "throttled_total": add,
    "unenforced_total": add,
    "throttle_seconds_total": add,
    "early_total": add,
    "early_seconds_total": add,
    "early_seconds_max": max,
    "throttle_left": max,
    "connections": add,
    "throttled_seconds": _known(max),
    "unthrottled_seconds": _known(min),
    "addresses": lambda one, other: tuple(dict.fromkeys((*one, *other))),
}
"""The merge of each field of a bucket's rows. All other fields identify the bucket and are equal."""


def merge_rows(answers: Iterable[Iterable[UsageRow]]) -> Steps[list[UsageRow]]:
    """A row for each bucket of any process, with the sum of its use and its longest throttle."""
    merged: dict[BucketName, UsageRow] = {}
    for rows in answers:
        for row in rows:
            name = row.bucket
            merged[name] = _merge_row(merged[name], row) if name in merged else row
            yield
    return list(merged.values())


def _merge_row(one: UsageRow, other: UsageRow) -> UsageRow:
    values: dict[str, Any] = {name: merge(getattr(one, name), getattr(other, name)) for name, merge in _ROW.items()}
    if not one.source and other.source:
        values |= {"level": other.level, "source": other.source}
    if values["limit"] is None:
        values["used_ratio"] = 0.0
    return replace(one, **values)


def is_throttled(left: float, unthrottled: float | None) -> bool:
    """True during a throttle time and for `HOLD_SECONDS` after it. The arguments are those of `UsageRow`."""
    return left > 0.0 or (unthrottled is not None and unthrottled < HOLD_SECONDS)


def wait_text(seconds: float) -> str:
    """The text of a throttle time: seconds, and milliseconds below 1 s."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{max(1, round(seconds * 1000))} ms"


@dataclass(frozen=True, slots=True)
class ThrottleTotals:
    """All throttle decisions of one kind as a histogram, not cumulative.

    `counts[i]` has the times up to `THROTTLE_BOUNDS[i]` seconds; its last slot, beyond the bounds, has the longer ones.
    `seconds` is the sum of the times.
    """

    kind: str
    counts: tuple[int, ...]
    seconds: float


class Tally:
    """The counters of one bucket, or the sums over several."""

    __slots__ = ("amount", "early", "early_seconds", "early_seconds_max", "throttle_seconds", "throttled", "unenforced")

    def __init__(self) -> None:
        self.amount = self.throttled = self.unenforced = self.early = 0
        self.throttle_seconds = self.early_seconds = self.early_seconds_max = 0.0


class ThrottleEpisode:
    """A time in which a bucket throttles. It ends `EPISODE_QUIET_SECONDS` after its last throttle time.

    `addresses` are those of throttled connections, the latest last.
    """

    __slots__ = ("_since", "_until", "addresses")

    def __init__(self) -> None:
        self._since = self._until = -inf
        self.addresses: dict[str, None] = {}

    def throttled(self, delay: float, now: float) -> None:
        """Note a throttle time of `delay` seconds. It begins a new episode if the last one is over."""
        if now > self._until + EPISODE_QUIET_SECONDS:
            self._since = now
            self.addresses = {}
        self._until = max(self._until, now + delay)

    def forgiven(self, now: float) -> None:
        """End the throttle times that are not over: nobody waits any more."""
        self._until = min(self._until, now)

    def note_address(self, address: str) -> None:
        """Remember the address of a throttled connection, for operators who look for the client."""
        addresses = self.addresses
        addresses.pop(address, None)
        addresses[address] = None
        if len(addresses) > MAX_ADDRESSES:
            del addresses[next(iter(addresses))]

    def seconds(self, now: float) -> float | None:
        """Seconds since the first throttle; None after the end."""
        return now - self._since if now <= self._until + EPISODE_QUIET_SECONDS else None

    def lasted_beyond(self, moment: float) -> bool:
        """True if a throttle time was not over at that moment, or began later."""
        return self._until > moment

    def quiet(self, now: float) -> float | None:
        """Seconds since the last throttle time was over, and 0.0 before; None after the end."""
        return None if now > self._until + EPISODE_QUIET_SECONDS else max(0.0, now - self._until)
