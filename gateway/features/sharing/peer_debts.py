"""The debts that members publish for a new member.

The balances of a new member start full, and past use is not published again. If it used a full balance while its peers are in
debt, the peers would wait longer than its clients for good. A member is *new* in its first messages. While members hear a new
member, they publish the debts of all entities. A new member takes debts and publishes none, and only new members take debts.
So two members never follow each other, and late messages can't keep a balance from recovering.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from gateway.features.sharing.own_uses import OwnUses
from gateway.features.sharing.shared_usage import PIECE, ROWS_OF_ALL, most_rows
from gateway.features.sharing.use_message import MAX_MESSAGE_BYTES, Debt, EntityUse, encoded_size
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps

NEW_MESSAGES: Final = 20
"""A member is new until it has published so many messages: four seconds of 200 ms. Peers have heard its first use by then."""

PUBLISH_INTERVALS: Final = 3.0
"""Members publish debts for so many intervals after a message of a new member, because its next message may be late."""

MAX_DEBTS: Final = ROWS_OF_ALL
"""The maximum number of debts, of all peers, that a new member takes in one interval."""

_ROW_BYTES: Final = 160
"""The maximum of a row without its names."""

_ROOM: Final = MAX_MESSAGE_BYTES // 16
"""The bytes of all debts in a message."""


class PeerDebts:
    """The debts that peers have published since the last interval, and the time when a new member was heard last."""

    def __init__(self) -> None:
        self._new_at = -inf
        self._ends: dict[tuple[UsageKey, float], float] = {}  # by entity and limit: the earliest end of the debt

    def notice(self, sequence: int, now: float) -> None:
        """A peer's message with this number has come."""
        if sequence <= NEW_MESSAGES:
            self._new_at = now

    def receive(self, debts: Mapping[UsageKey, Debt], sequence: int, now: float) -> list[EntityUse]:
        """Remember a living peer's debts. `sequence` is the number of the own last message.

        Returns the peer's uses that the debts contain, as uses without a recent part: they are not charged again.
        """
        if sequence > NEW_MESSAGES:
            return []
        for entity, debt in debts.items():
            key = entity, debt.limit
            if key in self._ends or len(self._ends) < MAX_DEBTS:
                self._ends[key] = min(self._ends.get(key, inf), now + debt.seconds)
        return [EntityUse(kind, name, debt.total, 0) for (kind, name), debt in debts.items() if debt.total > 0]

    def follow(self, account_of: Callable[[UsageKey, float], UsageAccount | None], clock: Callable[[], float]) -> Steps[None]:
        """Owe at least as much as the peer that owes least.

        The copies of peers agree, so the least debt is of the newest message. A debt under another limit is not comparable.
        """
        ends, self._ends = self._ends, {}
        for number, ((entity, limit), end) in enumerate(ends.items(), 1):
            now = clock()
            account = account_of(entity, now)
            meter = None if account is None else account.shared_meter()
            if meter is not None and meter.limit == limit:
                meter.follow(end - now, now)
            if number % PIECE == 0:
                yield

    def chosen(
        self,
        accounts: Iterable[tuple[UsageKey, UsageAccount]],
        uses: OwnUses,
        sequence: int,
        members: int,
        interval: float,
        clock: Callable[[], float],
    ) -> Steps[dict[UsageKey, Debt]]:
        """The debts for the message `sequence`; none if no new member was heard lately.

        If they are too many for one message, they take turns.
        """
        now = clock()
        if sequence <= NEW_MESSAGES or now - self._new_at > PUBLISH_INTERVALS * interval:
            return {}
        waiting: list[tuple[UsageKey, Debt]] = []
        for number, (entity, account) in enumerate(accounts, 1):
            meter = account.shared_meter()
            if meter is not None and (seconds := meter.debt(clock())) > 0.0:
                waiting.append((entity, Debt(meter.limit, seconds, uses.total(entity, account))))
            if number % PIECE == 0:
                yield
        most, room = most_rows(members), _ROOM
        begin = sequence * most % len(waiting) if len(waiting) > most else 0
        found: dict[UsageKey, Debt] = {}
        for entity, debt in (waiting[begin:] + waiting[:begin])[:most]:
            room -= _ROW_BYTES + encoded_size(entity[1])
            if room < 0:
                break
            found[entity] = debt
        return found
