"""The balances that one member publishes, so that all members keep the same balance of each entity.

Messages carry changes of use only. A new member, or one that was away, has missed some. While all clients want more, no balance
fills up. So balances would differ for good, and the clients of the higher balance would use the others' part. The *first*
member, by identity, follows nobody: otherwise two members could lower each other's balance. All others follow it.

A member is *new* in its first messages: it publishes no balance, and at once owes what its peers owe. Only then are balances of
brief bursts compared, those of a parent's bucket. Later, the members' copies change by the same use, and the way of a message
takes as long as the burst.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final

from gateway.features.sharing.own_uses import OwnUses
from gateway.features.sharing.shared_usage import PIECE, ROWS_OF_ALL, most_rows
from gateway.features.sharing.use_message import MAX_MESSAGE_BYTES, Balance, EntityUse, encoded_size
from gateway.quotas.shared_meter import SharedMeter, UsageAccount, UsageKey
from gateway.steps import Steps

NEW_MESSAGES: Final = 20
"""A member is new until it has published so many messages: four seconds of 200 ms. Peers have heard its first use by then."""

NEW_INTERVALS: Final = 3.0
"""Balances without recent use are published for so many intervals after a message of a new member."""

MAX_BALANCES: Final = ROWS_OF_ALL
"""The maximum number of balances, of all peers, that a member takes in one interval."""

NEARLY_USED: Final = 0.5
"""Balances of clients below this part of the burst are published. A full burst needs no agreement. The bucket of a group in a
tree may be full because its parent's bucket is empty."""

PART: Final = 0.1
"""A member goes this part of the way to the first member's balance in an interval. One balance is some requests old."""

_ROW_BYTES: Final = 160
"""The maximum of a row without its names."""

_ROOM: Final = MAX_MESSAGE_BYTES // 16
"""The bytes of all balances in a message."""


def contained(balances: Mapping[UsageKey, Balance]) -> Iterator[EntityUse]:
    """The publisher's uses that the balances contain, without a recent part: a new member does not charge them."""
    return (EntityUse(kind, name, each.total, 0) for (kind, name), each in balances.items() if each.total > 0)


def unreported_seconds(latency: float, members: int) -> float:
    """The inflow that a balance lacks after `latency` seconds on its way, as a time.

    All other members have reported their use of that time here. Only those two that compare their balances have not.
    """
    return latency * 2.0 / max(members, 2)


class PeerBalances:
    """The own balances less those that were received since the last interval, and the time of the last new member."""

    def __init__(self) -> None:
        self._new_at = -inf
        self._excess: dict[tuple[UsageKey, float], float] = {}  # units, by entity and limit

    def notice(self, sequence: int, now: float) -> None:
        """A peer's message with this number has come."""
        if sequence <= NEW_MESSAGES:
            self._new_at = now

    def with_new(self, interval: float, now: float) -> bool:
        """True if a new member was heard lately."""
        return now - self._new_at <= NEW_INTERVALS * interval

    def receive(
        self,
        balances: Mapping[UsageKey, Balance],
        account_of: Callable[[UsageKey, float], UsageAccount | None],
        unheard: Callable[[UsageKey, UsageAccount], int],
        now: float,
        age: float,
        *,
        new: bool,
    ) -> None:
        """Compare the own balances with those of a living peer. The use that they contain has been charged.

        The peer's balance does not contain the newest use of this member, which `unheard` returns. Without it, this member
        would get that use as credit. The balance also lacks the inflow of `age` seconds. Brief ones are compared by a `new`
        member only. A balance under another limit is not comparable.
        """
        for entity, (limit, seconds, _) in balances.items():
            if (entity, limit) not in self._excess and len(self._excess) >= MAX_BALANCES:
                continue
            account = account_of(entity, now)
            meter = None if account is None else account.shared_meter()
            if account is None or meter is None or not _has_limit(meter, limit):
                continue
            own = meter.comparable(now)
            if own is not None and (new or not meter.brief):
                self._excess[entity, limit] = own + unheard(entity, account) - (seconds + age) * limit

    def follow(
        self, account_of: Callable[[UsageKey, float], UsageAccount | None], clock: Callable[[], float], *, new: bool
    ) -> Steps[None]:
        """Come nearer to the balances of the first member. A new member owes at least as much at once.

        A brief balance swings by its whole burst between two messages, so the lowest one would be too low.
        """
        found, self._excess = self._excess, {}
        for number, ((entity, limit), excess) in enumerate(found.items(), 1):
            now = clock()
            account = account_of(entity, now)
            meter = None if account is None else account.shared_meter()
            if meter is not None and _has_limit(meter, limit):
                meter.lower(max(excess, 0.0) if new and not meter.brief else PART * excess, now)
            if number % PIECE == 0:
                yield

    def chosen(
        self,
        accounts: Iterable[tuple[UsageKey, UsageAccount]],
        uses: OwnUses,
        sequence: int,
        members: int,
        clock: Callable[[], float],
    ) -> Steps[dict[UsageKey, Balance]]:
        """The balances for the message `sequence`. If they are too many for one message, they take turns."""
        waiting: list[tuple[UsageKey, Balance]] = []
        for number, (entity, account) in enumerate(accounts, 1):
            meter = account.shared_meter()
            balance = None if meter is None else meter.comparable(clock())
            if meter is not None and balance is not None and (meter.exact or balance < NEARLY_USED * meter.capacity):
                waiting.append((entity, Balance(meter.limit, balance / meter.limit, uses.total(entity, account))))
            if number % PIECE == 0:
                yield
        most, room = most_rows(members), _ROOM
        begin = sequence * most % len(waiting) if len(waiting) > most else 0
        found: dict[UsageKey, Balance] = {}
        for entity, row in (waiting[begin:] + waiting[:begin])[:most]:
            room -= _ROW_BYTES + encoded_size(entity[1])
            if room < 0:
                break
            found[entity] = row
        return found


def _has_limit(meter: SharedMeter, limit: float) -> bool:
    return meter.exact or meter.limit == limit
