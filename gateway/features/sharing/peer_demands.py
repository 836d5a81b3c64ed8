"""The demands of groups, of which gateways inform each other, so that all of them compute the same division."""

from collections.abc import Mapping
from math import ceil, inf
from typing import Final

from gateway.features.sharing.use_message import MAX_DEMANDS, DemandKey, encoded_size
from gateway.quotas.group_buckets import Demands, GroupBuckets

NOTABLE: Final = 0.05
"""A bounded demand is published at once if it has changed by this part."""

REPEAT_MESSAGES: Final = 5
"""Each demand is published again after so many messages, for members that have missed it."""

STALE_INTERVALS: Final = 20
"""A demand of a peer that is not repeated for so many intervals is forgotten."""

_ROW_BYTES: Final = 80
"""The maximum of a row without its name."""

_FRACTIONS: Final = 1_024
"""Of a unit, in sums. They are integers, because a float does not give a large demand back exactly."""


class _Sum:
    """The demands of all peers for one group. `fractions` is the sum of those with a bound."""

    __slots__ = ("fractions", "peers", "unbounded")

    def __init__(self) -> None:
        self.fractions = 0
        self.unbounded = 0
        self.peers = 0

    def count(self, demand: float, times: int) -> None:
        self.peers += times
        if demand == inf:
            self.unbounded += times
        else:
            self.fractions += times * ceil(demand * _FRACTIONS)

    @property
    def demand(self) -> float:
        return inf if self.unbounded else self.fractions / _FRACTIONS


class PeerDemands:
    """The latest demands of all living peers, and their sums; and those that this member has published."""

    def __init__(self) -> None:
        self._own: Demands = {}
        self._of: dict[str, dict[DemandKey, tuple[float, float]]] = {}  # by peer: the demand, and the time of its message
        self._sums: dict[DemandKey, _Sum] = {}
        self._published: dict[DemandKey, tuple[float, int]] = {}  # the demand, and the sequence number of its message
        self._swept = ""

    def receive(self, identity: str, demands: Mapping[DemandKey, float], now: float) -> None:
        """Replace some demands of a peer. A demand of 0 ends."""
        known = self._of.setdefault(identity, {})
        for key, demand in demands.items():
            self._replace(known, key, demand, now)

    def forget(self, identity: str) -> None:
        """The peer has left or is silent, so none of its clients wants anything."""
        known = self._of.pop(identity, {})
        for key in list(known):
            self._replace(known, key, 0.0, 0.0)

    def _replace(self, known: dict[DemandKey, tuple[float, float]], key: DemandKey, demand: float, now: float) -> None:
        before = known.pop(key, None)
        if before is None and demand == 0.0:
            return
        total = self._sums.setdefault(key, _Sum())
        if before is not None:
            total.count(before[0], -1)
        if demand > 0.0:
            known[key] = demand, now
            total.count(demand, 1)
        if not total.peers:
            del self._sums[key]

    def divide(self, groups: GroupBuckets, interval: float, now: float) -> None:
        """Measure the own demands, and divide among the demands of all members."""
        self._sweep(now - STALE_INTERVALS * interval)
        self._own = groups.measure(now)
        groups.divide(self.whole(self._own), interval, now)

    def _sweep(self, oldest: float) -> None:
        """Forget the demands of one peer that were last published before `oldest`, of another peer at each call."""
        after = [identity for identity in self._of if identity > self._swept]
        self._swept = min(after or self._of, default="")
        known = self._of.get(self._swept, {})
        for key in [key for key, (_, heard) in known.items() if heard < oldest]:
            self._replace(known, key, 0.0, oldest)

    def whole(self, own: Mapping[DemandKey, float]) -> dict[DemandKey, float]:
        """The demands of all members."""
        found = {key: total.demand for key, total in self._sums.items()}
        for key, demand in own.items():
            found[key] = found.get(key, 0.0) + demand
        return found

    def chosen(self, sequence: int, room: int) -> tuple[dict[DemandKey, float], int]:
        """The own demands to publish in a message with `room` bytes for them, and how many are left out.

        Those that have waited longest come first. Otherwise demands that change all the time would keep out the others.
        """
        own = self._own
        waiting: list[tuple[int, DemandKey]] = []
        for key in {**self._published, **own}:
            before, at = self._published.get(key, (0.0, 0))
            if _differ(before, own.get(key, 0.0)) or sequence - at >= REPEAT_MESSAGES:
                waiting.append((at, key))
        waiting.sort()
        chosen: dict[DemandKey, float] = {}
        for _, key in waiting[:MAX_DEMANDS]:
            room -= _ROW_BYTES + encoded_size(key[1])
            if room < 0:
                break
            chosen[key] = own.get(key, 0.0)
            before, at = self._published.get(key, (0.0, 0))
            if chosen[key] == before == 0.0:
                del self._published[key]  # the end has been published twice
            else:
                self._published[key] = chosen[key], sequence
        return chosen, len(waiting) - len(chosen)


def _differ(before: float, after: float) -> bool:
    if before == inf or after == inf:
        return before != after
    return abs(after - before) > NOTABLE * max(before, after)
