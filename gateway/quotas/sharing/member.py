"""One member of the gateways that share their quotas: what it publishes, and what it makes of the others' messages.

Nobody's clock is compared with another's: counts are cumulative, messages are numbered, and how old a message is, is known from
when its successor failed to come. DESIGN.md has the bound on what may go over.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import Tags
from gateway.quotas.shared_meter import SharedMeter
from gateway.quotas.sharing.message import (
    MAX_ENTITIES,
    MAX_MESSAGE_BYTES,
    BadMessageError,
    EntityUse,
    UseMessage,
    encode,
    parse,
    parse_member,
)

Entity = tuple[str, Tags]
"""A quota kind and the tags of a bucket of it."""

Record = tuple[bytes, bytes | None]
"""Key and value, for the topic."""

MAX_MEMBERS = 2_000
MAX_FLOWS = 50_000
"""Entities times members whose counts are remembered."""

CROWD = 100
"""Members that publish at the interval itself; where there are more, each publishes more seldom, so that the traffic stays."""

HORIZON_INTERVALS = 3.0
"""For so many intervals own use is presumed to be matched by the others': until messages about it have been heard."""

QUIET_INTERVALS = 5
"""So many intervals small uses are gathered, and so many silent ones make an entity inactive at a member."""

EXPIRY_INTERVALS = 15
MIN_EXPIRY_SECONDS = 3.0
FORGET_SECONDS = 60.0
"""Longer than a member is remembered than the quota window is long, so that nothing is counted twice when it comes back."""

SWEEP_SECONDS = 10.0

SMALL = 0.01
"""Share of an entity's capacity that all members together may leave unpublished for `QUIET_INTERVALS`."""

_EVEN = 0.5
"""How much of the shares is dealt out evenly; the rest goes by use, so that shares become even where all want more."""


@dataclass(slots=True)
class _Flow:
    """An entity's use at a member: `total` in all, `weight` lately, as it was at `at`."""

    total: int
    at: float
    weight: float = 0.0

    def add(self, amount: int, now: float, memory: float) -> None:
        """It has used so much more."""
        self.weight = self.lately(now, memory) + amount
        self.at = now

    def lately(self, now: float, memory: float) -> float:
        """What it used, the less the longer ago: `memory` seconds ago counts 1/e."""
        return self.weight * exp((self.at - now) / memory)


@dataclass(slots=True)
class _Peer:
    """Another member. It is alive once a second message has come, and until no more come."""

    sequence: int
    heard: float
    alive: bool = False
    uses: dict[Entity, EntityUse] = field(default_factory=dict)  # of the first message, until the second one
    flows: dict[Entity, _Flow] = field(default_factory=dict)


@dataclass(slots=True)
class _Own:
    """An entity's use here. `bucket` may be another one than before: counts go on.

    `count` falls where something is given back; `flow.total`, which is published, waits then until it is reached again.
    """

    bucket: Bucket
    flow: _Flow
    began: float
    count: int = 0
    published: int = 0
    settled: int = 0


@dataclass(slots=True)
class SharingStatus:
    """Counts for metrics. `skipped` by reason."""

    members: int = 1
    reachable: bool = False
    messages_total: int = 0
    published_total: int = 0
    left_out_total: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


class Member:
    """The sharing of one gateway's buckets, `engine` being a shared one.

    `identity` is drawn anew at each start (16 hex digits). `step` is called every `interval` seconds and returns what is to be
    published, `receive` is given every record of the topic in order, the own ones as well: they tell that the topic is there.
    """

    def __init__(self, identity: str, engine: QuotaEngine, interval: float, now: float, *, fair_share: bool = False) -> None:
        self.identity = parse_member(identity.encode())
        self.status = SharingStatus()
        self._engine = engine
        self._interval = interval
        self._fair_share = fair_share
        self._sequence = 0
        self._published = float("-inf")
        self._swept = now
        self._settled_for = (1, False)
        self._echoed = float("-inf")
        self._peers: dict[str, _Peer] = {}
        self._own: dict[Entity, _Own] = {}
        self._active: dict[Entity, dict[str, _Flow]] = {}
        self._flows = 0

    @property
    def interval(self) -> float:
        """Seconds between two messages: longer where there are very many members."""
        return self._interval * max(1.0, self.status.members / CROWD)

    @property
    def tracked(self) -> int:
        """Entities, own ones and those of others, whose use is remembered."""
        return len(self._own) + self._flows

    @property
    def expiry(self) -> float:
        """Seconds without a message after which a member counts no longer."""
        return max(MIN_EXPIRY_SECONDS, EXPIRY_INTERVALS * self.interval)

    @property
    def quiet(self) -> float:
        """Seconds after which a use is no longer a recent one."""
        return QUIET_INTERVALS * self.interval

    # What comes in.

    def receive(self, key: bytes | None, value: bytes | None, now: float) -> None:
        """Take over a record of the topic; what can't be used is counted by its reason. Raises nothing."""
        self.status.messages_total += 1
        try:
            identity = parse_member(key)
            message = None if value is None else parse(value)
        except BadMessageError as error:
            self.status.skipped[error.reason] += 1
            return
        self.hear(identity, message, now)

    def hear(self, identity: str, message: UseMessage | None, now: float) -> None:
        """Take over what a member tells; None: it is gone."""
        if message is None:
            self._forget(identity)
            return
        if identity == self.identity:
            self._echoed = now
            return
        peer = self._peers.get(identity)
        if peer is None:
            if len(self._peers) >= MAX_MEMBERS:
                self.status.skipped["too_many_members"] += 1
                return
            # It may be the last word of a member that is long gone: what it tells counts when there is a second one.
            self._peers[identity] = _Peer(message.sequence, now, uses={(use.kind, use.tags): use for use in message.entities})
            return
        if message.sequence <= peer.sequence:
            self.status.skipped["repeated"] += 1
            return
        resumed = not peer.alive or now - peer.heard > self.expiry
        peer.sequence, peer.heard = message.sequence, now
        if not peer.alive:
            peer.alive = True
            waiting, peer.uses = peer.uses, {}
            current = {(use.kind, use.tags) for use in message.entities}
            self._charge(identity, peer, (use for entity, use in waiting.items() if entity not in current), now, resumed=True)
        self._charge(identity, peer, message.entities, now, resumed=resumed)

    def _charge(self, identity: str, peer: _Peer, uses: Iterable[EntityUse], now: float, *, resumed: bool) -> None:
        for use in uses:
            entity = (use.kind, use.tags)
            flow = peer.flows.get(entity)
            first = flow is None
            if flow is None:
                if self._flows >= MAX_FLOWS:
                    self.status.skipped["too_many_entities"] += 1
                    continue
                self._flows += 1
                flow = peer.flows[entity] = _Flow(0, now)
                self._active.setdefault(entity, {})[identity] = flow
            delta = use.total - flow.total
            history = resumed or (first and use.total > use.recent)
            if history or delta < 0:  # what was used before the window is over and done with
                delta = min(use.total if delta < 0 else delta, use.recent)
            flow.total = use.total
            if delta > 0:
                flow.add(delta, now, self.quiet)
            bucket = self._engine.counterpart(use.kind, use.tags, now)
            if bucket is not None and isinstance(bucket.meter, SharedMeter):
                bucket.last_used = now
                bucket.meter.charge_others(delta, now, no_debt=history)

    # What goes out.

    def step(self, now: float) -> list[Record]:
        """An interval is over: reckon the shares anew; returns the record to publish, or nothing while it is not time."""
        self._expire(now)
        self.status.reachable = now - self._echoed <= self.expiry
        self._look(now)
        if now - self._published < self.interval * 0.9:
            return []
        self._settle(now)
        self._published = now
        self._sequence += 1
        self.status.published_total += 1
        return [(self.identity.encode(), encode(UseMessage(self._sequence, self._chosen())))]

    def farewell(self) -> Record:
        """The record that takes this member out at once."""
        return self.identity.encode(), None

    def _look(self, now: float) -> None:
        """Count what each bucket let through since the last look."""
        for bucket in self._engine.buckets():
            if bucket.amount_total == bucket.shared_total:
                continue
            delta, bucket.shared_total = bucket.amount_total - bucket.shared_total, bucket.amount_total
            if bucket.resolution.tags.overflow or not isinstance(bucket.meter, SharedMeter):
                continue
            entity = (bucket.kind.name, bucket.resolution.tags)
            own = self._own.get(entity)
            if own is None:
                own = self._own[entity] = _Own(bucket, _Flow(0, now), now)
            elif now - own.flow.at > self.quiet:
                own.began = now
            own.bucket = bucket
            own.count += delta
            own.flow.total = max(own.flow.total, own.count)
            own.flow.add(max(delta, 0), now, self.quiet)

    def _settle(self, now: float) -> None:
        members, reachable = self.status.members, self.status.reachable
        horizon = HORIZON_INTERVALS * self.interval
        alone = not reachable and not self._fair_share
        self._engine.share_of_new = (1.0 if alone else 1.0 / members, horizon if reachable else _FOR_EVER)
        changed = (members, reachable) != self._settled_for
        self._settled_for = (members, reachable)
        for bucket in self._engine.buckets() if changed else self._busy(now):
            meter = bucket.meter
            if not isinstance(meter, SharedMeter):
                continue
            if reachable:
                meter.settle(self._share((bucket.kind.name, bucket.resolution.tags), now), horizon, now)
            elif self._fair_share:
                meter.settle(1.0 / members, _FOR_EVER, now, confirm=True)
            else:
                meter.settle(1.0, 0.0, now)

    def _busy(self, now: float) -> Iterable[Bucket]:
        """The buckets whose share may be another one by now."""
        oldest = now - 3 * self.quiet
        seen = set()
        for entity, own in self._own.items():
            if own.flow.at >= oldest:
                seen.add(entity)
                yield own.bucket
        for entity, flows in self._active.items():
            if entity not in seen and any(flow.at >= oldest for flow in flows.values()):
                bucket = self._engine.counterpart(*entity, now)
                if bucket is not None:
                    yield bucket

    def _share(self, entity: Entity, now: float) -> float:
        """This member's part of an entity's use: half of it by heads, half by what each used lately.

        As long as nobody is known to use it, everybody may be about to begin.
        """
        quiet = self.quiet
        others = [flow.lately(now, quiet) for flow in self._active.get(entity, {}).values() if now - flow.at <= quiet]
        own = self._own.get(entity)
        known = own is not None and now - own.flow.at <= quiet
        if own is None or not known or (not others and now - own.began < HORIZON_INTERVALS * self.interval):
            return 1.0 / max(self.status.members, len(others) + 1)
        used_here = own.flow.lately(now, quiet)
        used = used_here + sum(others)
        by_use = used_here / used if used > 0.0 else 1.0
        return _EVEN / (len(others) + 1) + (1.0 - _EVEN) * by_use

    def _chosen(self) -> tuple[EntityUse, ...]:
        """What is published: large uses at once, small ones after some intervals, the most pressing first."""
        waiting = []
        for (kind, tags), own in self._own.items():
            unpublished = own.flow.total - own.published
            if unpublished == 0 or own.bucket.meter is None:
                own.settled = self._sequence
                continue
            pressing = unpublished * self.status.members / own.bucket.meter.capacity
            if pressing >= SMALL or self._sequence - own.settled >= QUIET_INTERVALS:
                waiting.append((pressing, kind, tags, own))
        waiting.sort(key=lambda item: -item[0])
        chosen = []
        room = MAX_MESSAGE_BYTES // 2
        for _, kind, tags, own in waiting[:MAX_ENTITIES]:
            room -= _ROW_BYTES + 6 * sum(len(name or "") for name in (tags.user, tags.client_id, tags.ip))
            if room < 0:
                break
            own.published, own.settled = own.flow.total, self._sequence
            chosen.append(EntityUse(kind, tags, own.flow.total, min(own.flow.total, own.bucket.used_lately())))
        self.status.left_out_total += len(waiting) - len(chosen)
        return tuple(chosen)

    # What is forgotten.

    def _expire(self, now: float) -> None:
        forget = max(FORGET_SECONDS, self.expiry)
        if self._peers:
            silent = [identity for identity, peer in self._peers.items() if now - peer.heard > forget]
            for identity in silent:
                self._forget(identity)
        if now - self._echoed <= self.expiry or self._echoed == float("-inf"):
            expiry = self.expiry
            self.status.members = 1 + sum(peer.alive and now - peer.heard <= expiry for peer in self._peers.values())
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._sweep(now - forget)

    def _sweep(self, before: float) -> None:
        """Forget what was used last so long ago."""
        for entity, own in list(self._own.items()):
            if own.flow.at < before and own.flow.total == own.published:
                del self._own[entity]
        for entity, flows in list(self._active.items()):
            for identity in [identity for identity, flow in flows.items() if flow.at < before]:
                del flows[identity]
                del self._peers[identity].flows[entity]
                self._flows -= 1
            if not flows:
                del self._active[entity]

    def _forget(self, identity: str) -> None:
        peer = self._peers.pop(identity, None)
        if peer is None:
            return
        self._flows -= len(peer.flows)
        for entity in peer.flows:
            flows = self._active[entity]
            del flows[identity]
            if not flows:
                del self._active[entity]


_FOR_EVER = 1e9
_ROW_BYTES = 100
