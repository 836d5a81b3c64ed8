"""The first requests of connections, which wait unforwarded while a bucket is in debt (`Bucket.enter_queue`).

A client whose request timeout is shorter than the debt gives each connection up before its turn. If it waited anew on the next
one, it would never get an answer. So later connections take the turns of closed ones. Reconnecting gains nothing: each turn has
been waited for, and lets one request pass. A member of a consumer group that is let in earlier (`spared_members`)
leaves its turn to members alone. Otherwise any request would pass with such a turn, in spite of a debt.

The gateway collects a request whose turn has come and whose last bytes have not. The unread bytes of a client that has given up
hide the end of its connection. Such a request must neither use the turn nor be charged.
"""

from bisect import insort
from typing import Final

from gateway.quotas.line import LONGEST_TURN_SECONDS, LOOK_SECONDS

MAX_KEPT_TURNS: Final = 100
"""Per bucket, and as many of members. A client that leaves many connections keeps no more turns than it could have with so
many open connections."""

KEPT_SECONDS: Final = 60.0
"""A kept turn lasts for so long after its time. Clients reconnect within seconds."""


class FirstRequests:
    """The requests that wait for one bucket. All times are in monotonic seconds."""

    __slots__ = ("_arrives_by", "_kept", "_kept_by_members", "waiting")

    def __init__(self) -> None:
        self.waiting = 0  # units of the requests, also of the one that is arriving
        self._arrives_by = 0.0  # until then, the request whose turn has come keeps the others waiting
        self._kept: list[float] | None = None  # in order
        self._kept_by_members: list[float] | None = None  # likewise

    def turn(self, debt: float, limit: float, now: float) -> float:
        """The latest end of a new request's wait. `debt` is in seconds, `limit` in units per second."""
        turn = now + debt + min(self.waiting / limit, LONGEST_TURN_SECONDS)
        return _earliest(self._kept, turn, now)

    def member_turn(self, turn: float, now: float) -> float:
        """The earliest turn that a member has left, if that is before `turn`."""
        return _earliest(self._kept_by_members, turn, now)

    def leave(self, amount: int, arrives_by: float = 0.0) -> None:
        """A request of `amount` units that waited is forwarded, or its connection is gone.

        `arrives_by` is the result of `begin_arrival` if it was called for the request. A later arrival goes on.
        """
        self.waiting -= amount
        if arrives_by == self._arrives_by:
            self._arrives_by = 0.0

    def begin_arrival(self, amount: int, now: float) -> float:
        """The turn of a request has come before its last bytes. The others wait for it until the time that is returned."""
        self.waiting += amount
        self._arrives_by = now + LOOK_SECONDS
        return self._arrives_by

    def arriving(self, now: float) -> bool:
        """True while a request keeps the others waiting, although the debt is paid off."""
        return now < self._arrives_by

    def keep(self, turn: float, now: float, *, member: bool = False) -> None:
        """Keep the turn of a connection that is gone. Beyond `MAX_KEPT_TURNS`, the latest turn is forgotten.

        `member`: it was let in as a member of a consumer group.
        """
        if member:
            self._kept_by_members = _with(self._kept_by_members, turn, now)
        else:
            self._kept = _with(self._kept, turn, now)


def _earliest(kept: list[float] | None, turn: float, now: float) -> float:
    """Take the first of the kept turns if it is before `turn`."""
    if kept is None:
        return turn
    _expire(kept, now)
    return kept.pop(0) if kept and kept[0] < turn else turn


def _with(kept: list[float] | None, turn: float, now: float) -> list[float]:
    kept = kept or []
    _expire(kept, now)
    insort(kept, turn)
    del kept[MAX_KEPT_TURNS:]
    return kept


def _expire(kept: list[float], now: float) -> None:
    while kept and kept[0] < now - KEPT_SECONDS:
        del kept[0]
