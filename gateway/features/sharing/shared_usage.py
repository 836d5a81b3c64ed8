"""Usage that gateways share: the accounts of a gateway, and the uses that a member remembers, of its own and of its peers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp
from typing import Protocol

from gateway.features.sharing.use_message import MAX_ENTITIES, EntityUse
from gateway.quotas.entity import Tags
from gateway.quotas.shared_meter import UsageAccount, UsageKey

PIECE = 32
"""The entities of one step: some 0.1 ms of work."""

FORGET_SECONDS = 60.0
"""A silent member, and the use of an entity, are remembered for at least this time. Use that still counts is remembered for
longer, so that no use is counted twice."""

QUIET_INTERVALS = 5
"""Small uses are published after this number of intervals. An entity without use for this time counts as inactive."""

SMALL = 0.01
"""The part of an entity's capacity that all members together may leave unpublished for `QUIET_INTERVALS`."""

ROWS_OF_ALL = 4_000
"""The maximum number of entities in the messages of all members in one interval, so that reading them takes bounded time."""

LEAST_ROWS = 20
"""The number of entities that a message may have in any case."""

_PAUSE_INTERVALS = 0.1
"""A tenth of an interval: a gateway then reads the records of fifty members at once."""

_IDENTITIES = 2**64
_SPREAD = 11_400_714_819_323_198_485
"""2**64 divided by the golden ratio: multiples of it are spread evenly, as in Fibonacci hashing."""


class SharedUsage(Protocol):
    """A collection of accounts: clients' buckets, topics, or listeners. Its `kinds` belong to no other collection."""

    @property
    def kinds(self) -> frozenset[str]: ...

    @property
    def memory(self) -> float:
        """The seconds for which use may count in `recent()` of an account."""

    def accounts(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        """All accounts. One that is made or dropped during the iteration may be in it or not."""

    def changed(self) -> Iterable[tuple[UsageKey, UsageAccount] | None]:
        """The accounts whose `total()` differs from `shared_total`. Accounts may be used, made and dropped meanwhile.

        None stands for a step that has looked at unchanged accounts.
        """

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The account for a peer's entity, created if it is missing. None without a quota here, or without room."""


@dataclass(slots=True)
class DecayingUse:
    """An entity's use at one member: `total` since the start, and a `weight` that decays from the time `at`.

    `missed` is True if the next message may contain old use, because this gateway has missed messages.
    """

    total: int
    at: float
    weight: float = 0.0
    missed: bool = False

    def add(self, amount: int, now: float, memory: float) -> None:
        self.weight = self.recent(now, memory) + amount
        self.at = now

    def recent(self, now: float, memory: float) -> float:
        """Recent use. Use from `memory` seconds ago counts 1/e."""
        return self.weight * exp((self.at - now) / memory)


@dataclass(slots=True)
class Peer:
    """Another member. It is alive after its second message; until then, `uses` has its first message.

    All of its messages since `complete` have been heard. `interval` and `enforced` are those of its last message.
    """

    sequence: int
    heard: float
    complete: float
    alive: bool = False
    interval: float = 0.0
    enforced: bool = True
    uses: dict[UsageKey, EntityUse] = field(default_factory=dict)
    flows: dict[UsageKey, DecayingUse] = field(default_factory=dict)


@dataclass(slots=True)
class OwnUse:
    """An entity's use at this member. The counts continue with a new `account`.

    `flow.total` never falls: use that was given back stays counted, as peers may have heard of it. The use `began` after the
    last quiet time, and goes on `since` one that peers forget. `name_bytes` is the size of its name in messages.
    `published` is the total in the message `settled`, and `earlier` has those of messages that peers may not have got yet.
    """

    account: UsageAccount
    flow: DecayingUse
    began: float
    since: float
    name_bytes: int
    published: int = 0
    settled: int = 0
    earlier: tuple[tuple[int, int], ...] = ()  # the number of a message, and the total in it


@dataclass(slots=True)
class SharingStatus:
    """A member's counts; `skipped` by reason."""

    members: int = 1
    reachable: bool = False
    left_out_total: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def most_rows(members: int) -> int:
    """The maximum number of entities in one message."""
    return min(MAX_ENTITIES, max(LEAST_ROWS, ROWS_OF_ALL // members))


def first_turn(identity: str) -> float:
    """A member's place in [0, 1) among all members, see `SharedMeter`."""
    return (int(identity, 16) * _SPREAD % _IDENTITIES) / _IDENTITIES


def reading_pause(interval: float, configured: float) -> float:
    """Seconds between two reads of the topic. Nobody pauses among few members with one `configured` interval."""
    return interval * _PAUSE_INTERVALS if interval > configured else 0.0
