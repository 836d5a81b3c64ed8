"""What a member remembers of uses: its own, and those that others have told of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

from gateway.features.sharing.book import Entity
from gateway.features.sharing.use_message import EntityUse
from gateway.quotas.shared_meter import UsageAccount


@dataclass(slots=True)
class Flow:
    """An entity's use at a member: `total` in all, `weight` lately, as it was at `at`.

    `missed`: it may have been used long before the next message that names it, while nobody listened here.
    """

    total: int
    at: float
    weight: float = 0.0
    missed: bool = False

    def add(self, amount: int, now: float, memory: float) -> None:
        """It has used so much more."""
        self.weight = self.lately(now, memory) + amount
        self.at = now

    def lately(self, now: float, memory: float) -> float:
        """What it used, the less the longer ago: `memory` seconds ago counts 1/e."""
        return self.weight * exp((self.at - now) / memory)


@dataclass(slots=True)
class Peer:
    """Another member. It is alive once a second message has come, and until no more come."""

    sequence: int
    heard: float
    alive: bool = False
    uses: dict[Entity, EntityUse] = field(default_factory=dict)  # of the first message, until the second one
    flows: dict[Entity, Flow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What one member knew of another, for the next start: its last message, and how much it had told of each entity."""

    identity: str
    sequence: int
    totals: Mapping[Entity, int]


@dataclass(slots=True)
class Own:
    """An entity's use here. `account` may be another one than before: counts go on.

    `count` falls where something is given back; `flow.total`, which is published, waits then until it is reached again.
    """

    account: UsageAccount
    flow: Flow
    began: float
    count: int = 0
    published: int = 0
    settled: int = 0
