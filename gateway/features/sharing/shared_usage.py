"""Usage that gateways share: the accounts of a gateway, and the uses that a member remembers, of its own and of its peers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp
from typing import Protocol

from gateway.features.sharing.use_message import EntityUse
from gateway.quotas.entity import Tags
from gateway.quotas.shared_meter import UsageAccount, UsageKey


class SharedUsage(Protocol):
    """A collection of accounts: clients' buckets, topics, or listeners. Its `kinds` belong to no other collection."""

    @property
    def kinds(self) -> frozenset[str]: ...

    def accounts(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        """All accounts. Nothing may be changed during the iteration."""

    def changed(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        """The accounts whose `total()` differs from `shared_total`."""

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
    """Another member. It is alive after its second message; until then, `uses` has its first message."""

    sequence: int
    heard: float
    alive: bool = False
    uses: dict[UsageKey, EntityUse] = field(default_factory=dict)
    flows: dict[UsageKey, DecayingUse] = field(default_factory=dict)


@dataclass(slots=True)
class OwnUse:
    """An entity's use at this member. The counts continue with a new `account`.

    `count` falls if use is given back. The published `flow.total` stays the same until `count` exceeds it again.
    """

    account: UsageAccount
    flow: DecayingUse
    began: float
    count: int = 0
    published: int = 0
    settled: int = 0


@dataclass(slots=True)
class SharingStatus:
    """A member's counts; `skipped` by reason."""

    members: int = 1
    reachable: bool = False
    left_out_total: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
