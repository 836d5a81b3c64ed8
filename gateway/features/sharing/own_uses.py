"""The use through this gateway: counted from its accounts, and chosen for its messages."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final

from gateway.features.sharing.shared_usage import (
    FORGET_SECONDS,
    PIECE,
    QUIET_INTERVALS,
    SMALL,
    DecayingUse,
    OwnUse,
    most_rows,
)
from gateway.features.sharing.use_message import MAX_ENTITIES, MAX_MESSAGE_BYTES, MAX_NAME, EntityUse, encoded_size
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps

_ROW_BYTES: Final = 160
"""The maximum of an entity's row without its names."""


_MESSAGES: Final = 20
"""The number of own messages whose way through the topic is followed."""

_EARLIER: Final = 4
"""The number of messages before the last one whose totals are kept. A message seldom takes longer than four intervals."""


class OwnMessages:
    """The own messages on their way. The topic takes as long to bring a message to a peer as back to this member."""

    def __init__(self) -> None:
        self._made: deque[tuple[int, float]] = deque(maxlen=_MESSAGES)
        self._returned: deque[tuple[int, float]] = deque(maxlen=_MESSAGES)
        self.latency = 0.0
        """Seconds, of the last message that has come back."""
        self._heard = 0

    def make(self, sequence: int, now: float) -> None:
        self._made.append((sequence, now))

    def notice(self, sequence: int, now: float) -> None:
        """The message has come back."""
        while self._made and self._made[0][0] <= sequence:
            self.latency = now - self._made.popleft()[1]
        self._returned.append((sequence, now))

    def heard(self, now: float) -> int:
        """The last own message that a peer had when it made a message that arrives now."""
        while self._returned and self._returned[0][1] < now - self.latency:
            self._heard = self._returned.popleft()[0]
        return self._heard


class OwnUses:
    """The uses by entity. Between the steps of one call, other calls may come."""

    def __init__(self) -> None:
        self._uses: dict[UsageKey, OwnUse] = {}
        # The entities of the last message, with their `published`, `settled` and `earlier` before the message.
        self._in_flight: list[tuple[OwnUse, int, int, tuple[tuple[int, int], ...]]] = []

    def __len__(self) -> int:
        return len(self._uses)

    def get(self, entity: UsageKey) -> OwnUse | None:
        return self._uses.get(entity)

    def total(self, entity: UsageKey, account: UsageAccount) -> int:
        """The use through this gateway until now, in messages. Some of it may not have been counted yet."""
        own = self._uses.get(entity)
        return (0 if own is None else own.flow.total) + max(account.total() - account.shared_total, 0)

    def unheard(self, entity: UsageKey, account: UsageAccount, heard: int) -> int:
        """The use through this gateway that is not in its messages up to number `heard`, the last one that a peer has got."""
        own = self._uses.get(entity)
        if own is None:
            return self.total(entity, account)
        totals = (*own.earlier, (own.settled, own.published))
        # If the peer has got none of these messages, the oldest total is the nearest one.
        known = next((total for number, total in reversed(totals) if number <= heard), totals[0][1])
        return self.total(entity, account) - known

    def count(
        self, changed: Iterable[tuple[UsageKey, UsageAccount] | None], quiet: float, clock: Callable[[], float]
    ) -> Steps[None]:
        """Count the use of each account since the last call. Use is recent for `quiet` seconds. None in `changed`: a step."""
        now = clock()
        for number, found in enumerate(changed, 1):
            if found is not None:
                entity, account = found
                total = account.total()
                delta, account.shared_total = total - account.shared_total, total
                if account.capacity() != 0.0:
                    self._add(entity, account, delta, quiet, now)
            if found is None or number % PIECE == 0:
                yield
                now = clock()

    def _add(self, entity: UsageKey, account: UsageAccount, delta: int, quiet: float, now: float) -> None:
        own = self._uses.get(entity)
        if own is None:
            own = self._uses[entity] = OwnUse(account, DecayingUse(0, now), now, now, encoded_size(entity[1]))
        elif now - own.flow.at > quiet:
            own.began = now
            if now - own.flow.at > FORGET_SECONDS:
                own.since = now
        own.account = account
        own.flow.total += max(delta, 0)
        own.flow.add(max(delta, 0), now, quiet)

    def since(self, oldest: float) -> Steps[list[tuple[UsageKey, UsageAccount]]]:
        """The accounts with shared meters that were used since `oldest`."""
        found: list[tuple[UsageKey, UsageAccount]] = []
        for number, (entity, own) in enumerate(self._everyone(), 1):
            if own.flow.at >= oldest and own.account.shared_meter() is not None:
                found.append((entity, own.account))
            if number % PIECE == 0:
                yield
        return found

    def _everyone(self) -> Iterator[tuple[UsageKey, OwnUse]]:
        """Each use. Uses may come and go between two of them."""
        for entity in list(self._uses):  # a list of pairs takes many times as long
            own = self._uses.get(entity)
            if own is not None:
                yield entity, own

    def chosen(
        self, members: int, sequence: int, now: float, *, last: bool = False
    ) -> Steps[tuple[tuple[EntityUse, ...], int]]:
        """The uses to publish in the message `sequence`, and how many are left out.

        Large uses are published at once, small uses after `QUIET_INTERVALS`, the most urgent first. `last`: the gateway stops.
        """
        most = MAX_ENTITIES if last else most_rows(members)
        waiting, number = yield from self._waiting(members, sequence, 0.0 if last else SMALL, most)
        chosen: list[EntityUse] = []
        self._in_flight = []
        room = MAX_MESSAGE_BYTES // 2
        for (kind, name), own in waiting:
            room -= _ROW_BYTES + own.name_bytes
            if room < 0:
                break
            self._in_flight.append((own, own.published, own.settled, own.earlier))
            own.earlier = (*own.earlier[1 - _EARLIER :], (own.settled, own.published))
            own.published, own.settled = own.flow.total, sequence
            chosen.append(EntityUse(kind, name, own.flow.total, min(own.flow.total, own.account.recent(now))))
        return tuple(chosen), number - len(chosen)

    def _waiting(
        self, members: int, sequence: int, least: float, most: int
    ) -> Steps[tuple[list[tuple[UsageKey, OwnUse]], int]]:
        """The `most` urgent of the waiting uses, and the number of all of them."""
        waiting: list[tuple[float, UsageKey, OwnUse]] = []
        left_out = 0
        for number, (entity, own) in enumerate(self._everyone(), 1):
            unpublished = own.flow.total - own.published
            capacity = own.account.capacity()
            if unpublished == 0 or capacity == 0.0 or own.name_bytes > MAX_NAME:
                own.settled, own.earlier = sequence, ()
            else:
                urgency = unpublished * members / capacity
                if urgency >= least or sequence - own.settled >= QUIET_INTERVALS:
                    waiting.append((urgency, entity, own))
            if len(waiting) >= 2 * most:
                left_out += _shorten(waiting, most)
            if number % PIECE == 0:
                yield
        left_out += _shorten(waiting, most)
        return [(entity, own) for _, entity, own in waiting], left_out + len(waiting)

    def not_published(self) -> None:
        """The last message has failed: the next message repeats its use."""
        for own, published, settled, earlier in self._in_flight:
            own.published, own.settled, own.earlier = published, settled, earlier
        self._in_flight = []

    def sweep(self, before: Mapping[str, float]) -> Steps[None]:
        """Forget entities whose last use is older than `before` of their kind, and published or without a quota by now."""
        for number, (entity, own) in enumerate(self._everyone(), 1):
            if own.flow.at < before[entity[0]] and (own.flow.total == own.published or own.account.capacity() == 0.0):
                self._uses.pop(entity, None)
            if number % PIECE == 0:
                yield


def _shorten(waiting: list[tuple[float, UsageKey, OwnUse]], most: int) -> int:
    """Keep the `most` urgent ones, in their order. Returns the number of the others."""
    waiting.sort(key=itemgetter(0), reverse=True)
    left_out = max(len(waiting) - most, 0)
    del waiting[most:]
    return left_out
