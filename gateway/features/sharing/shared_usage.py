"""Usage that gateways share: the accounts of this gateway, and a member's memory of its own and the peers' use."""

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
        """The accounts with `total()` other than `shared_total`."""

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The account for a peer's entity, created if it is missing. None without a quota here, or without room."""


@dataclass(slots=True)
class Flow:
    """An entity's use at a member: `total` since the start, and a decaying `weight` as of the time `at`.

    `missed` is True if the use may be older than the next message, because this gateway did not listen.
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
    """Another member. It becomes alive with its second message; `uses` is its first message until then."""

    sequence: int
    heard: float
    alive: bool = False
    uses: dict[UsageKey, EntityUse] = field(default_factory=dict)
    flows: dict[UsageKey, Flow] = field(default_factory=dict)


@dataclass(slots=True)
class Own:
    """An entity's use here. `account` may be replaced by a new one: the counts continue.

    `count` falls if something is given back. `flow.total`, which is published, then waits until `count` reaches it again.
    """

    account: UsageAccount
    flow: Flow
    began: float
    count: int = 0
    published: int = 0
    settled: int = 0
