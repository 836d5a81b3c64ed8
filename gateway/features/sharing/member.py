"""One of the gateways that share their quotas: publishes its use, and charges the use that its peers publish.

Members compare no clocks: counts are cumulative, and messages have sequence numbers. docs/decisions/013 has the bound.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from math import ceil

from gateway.cluster.client import BadRecordError
from gateway.features.sharing.known_peers import KnownPeers
from gateway.features.sharing.own_share import HORIZON_INTERVALS, share_of, users_of
from gateway.features.sharing.own_uses import OwnMessages, OwnUses
from gateway.features.sharing.peer_balances import NEW_MESSAGES, PeerBalances, contained, unreported_seconds
from gateway.features.sharing.peer_counts import PeerCounts, SharedCounts
from gateway.features.sharing.peer_demands import PeerDemands
from gateway.features.sharing.shared_usage import (
    FORGET_SECONDS,
    PIECE,
    QUIET_INTERVALS,
    DecayingUse,
    Peer,
    SharedUsage,
    SharingStatus,
    first_turn,
)
from gateway.features.sharing.use_message import MAX_MESSAGE_BYTES, EntityUse, UseMessage, encode, parse, parse_member
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.recent_use import PeerTotals
from gateway.quotas.shared_meter import Part, UsageAccount, UsageKey
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS
from gateway.steps import Steps, at_once

MemberRecord = tuple[bytes, bytes | None]
"""Key and value, for the topic."""

CROWD = 100
"""With more members, each member publishes less often, so that the traffic does not grow."""

EXPIRY_INTERVALS = 15
MIN_EXPIRY_SECONDS = 3.0
SWEEP_SECONDS = 10.0

TIMELY_RECORDS = 4
"""More records of an unknown member in one fetch are a backlog."""

LAST_RECORDS = 3
"""The messages of a member that stops. With the tombstone, peers do not take so few for a backlog."""


class Member:
    """Shares the buckets of `engine` and the accounts of `shared`.

    `identity` is a new random name at each start (16 hex digits). The owner calls `step` every `interval` seconds and publishes
    its records. `receive` gets every record of the topic in order; the member's own records show that the topic is reachable.
    """

    def __init__(
        self,
        identity: str,
        engine: QuotaEngine,
        interval: float,
        now: float,
        *,
        fair_share: bool = False,
        shared: Sequence[SharedUsage] = (),
        counts: Sequence[SharedCounts] = (),
        crowd: int = CROWD,
    ) -> None:
        self._crowd = crowd
        self.identity = parse_member(identity.encode())
        self._turn = first_turn(identity)
        self.status = SharingStatus()
        self._engine = engine
        self._shared: tuple[SharedUsage, ...] = (engine, *shared)
        self._by_kind = {kind: each for each in self._shared for kind in each.kinds}
        self._interval = interval
        self._slowest = 0.0  # the longest configured interval of the living peers
        self._fair_share = fair_share
        self._sequence = 0
        self._settled = float("-inf")
        self._swept = now
        self._settled_for = (1, False, True, interval)
        self._own_message_at = float("-inf")
        self._peers = KnownPeers()
        self._own = OwnUses()
        self._messages = OwnMessages()
        self._presuming: dict[UsageKey, UsageAccount] = {}  # accounts that hold presumed use after the last step
        self._connections = PeerCounts(*counts)
        self._demands = PeerDemands()
        self._balances = PeerBalances()
        self._in_use: Iterable[tuple[UsageKey, UsageAccount]] = ()  # the accounts of the last step

    def configure(self, interval: float, *, fair_share: bool) -> None:
        """The settings take effect with the next step."""
        self._interval = interval
        self._fair_share = fair_share
        self._settled_for = (0, False, True, interval)  # settle every account once

    @property
    def interval(self) -> float:
        """Seconds between two messages: the longest configured ones of all members, and more with over `crowd` members."""
        # With a shorter interval, a member would forget the use of a slower one between two of its messages.
        return max(self._interval, self._slowest) * max(1.0, self.status.members / self._crowd)

    @property
    def _new(self) -> bool:
        return self._sequence <= NEW_MESSAGES

    @property
    def tracked(self) -> int:
        """The number of entities with remembered use, here and at peers."""
        return len(self._own) + self._peers.flows

    @property
    def expiry(self) -> float:
        """Seconds without a message after which a member no longer counts."""
        return max(MIN_EXPIRY_SECONDS, EXPIRY_INTERVALS * self.interval)

    def _forget_after(self, kind: str) -> float:
        """Seconds after which a peer's use no longer counts. Marks and messages may be late, so some seconds are added."""
        return max(FORGET_SECONDS, self._by_kind[kind].memory + self.expiry + SWEEP_SECONDS)

    @property
    def quiet(self) -> float:
        """Seconds after which use is no longer recent."""
        return QUIET_INTERVALS * self.interval

    def timely_records(self, key: bytes | None, now: float) -> int:
        """The records of a member in one fetch that are no backlog: all that a living member sends before it expires."""
        identity = "" if key is None else key.decode(errors="replace")
        peer = self._peers.by_identity.get(identity)
        lives = peer is not None and peer.alive and now - peer.heard <= self.expiry
        return ceil(self.expiry / self.interval) + 1 if lives or identity == self.identity else TIMELY_RECORDS

    def receive(self, key: bytes | None, value: bytes | None, now: float) -> None:
        """Handle a record of the topic. Unusable records are counted by reason."""
        try:
            identity = parse_member(key)
            message = None if value is None else parse(value)
        except BadRecordError as error:
            self.status.skipped[error.reason] += 1
            return
        if message is not None:
            self.status.skipped.update(message.skipped)
        self.handle(identity, message, now)

    def handle(self, identity: str, message: UseMessage | None, now: float) -> None:
        """Handle a member's message; None means that the member has left."""
        if message is None:
            self._forget(identity)
            return
        if identity == self.identity:
            self._own_message_at = now
            self._messages.notice(message.sequence, now)
            return
        self._balances.notice(message.sequence, now)
        peer = self._peers.by_identity.get(identity)
        if peer is None:
            if self._peers.full:
                self.status.skipped["too_many_members"] += 1
                return
            # The member may have left long ago. Its use counts after a second message.
            uses = (use for use in message.entities if use.kind in self._by_kind)
            left_out = self._peers.add(identity, Peer(message.sequence, now, now), uses)
            if left_out:
                self.status.skipped["too_many_entities"] += left_out
            return
        if message.sequence <= peer.sequence:
            self.status.skipped["repeated"] += 1
            return
        resumed = not peer.alive or now - peer.heard > self.expiry
        peer.sequence, peer.heard, peer.interval, peer.enforced = message.sequence, now, message.interval, message.enforced
        if not peer.alive:
            peer.alive = True
            waiting = self._peers.begin(peer)
            current = {(use.kind, use.name) for use in message.entities}
            self._charge(identity, peer, (use for entity, use in waiting.items() if entity not in current), now, resumed=True)
        if resumed:
            peer.complete = now
            # A full message leaves out entities, and later messages have their old use.
            for flow in peer.flows.values():
                flow.missed = True
        self._charge(identity, peer, message.entities, now, resumed=resumed)
        if self._new:
            self._charge(identity, peer, contained(message.balances), now, resumed=resumed)
        if self._new or (identity < self.identity and not resumed):
            unheard = partial(self._own.unheard, heard=self._messages.heard(now))
            age = unreported_seconds(self._messages.latency, self.status.members)
            self._balances.receive(message.balances, self._peer_account, unheard, now, age, new=self._new)
        self._connections.receive(identity, message.connections, message.turns)
        in_tree = self._engine.group_buckets.in_tree
        self._demands.receive(identity, {key: demand for key, demand in message.demands.items() if in_tree(*key)}, now)

    def _charge(self, identity: str, peer: Peer, uses: Iterable[EntityUse], now: float, *, resumed: bool) -> None:
        for use in uses:
            entity = (use.kind, use.name)
            if use.kind not in self._by_kind:
                continue  # a kind of a later version of Weir
            flow = peer.flows.get(entity)
            first = flow is None
            if flow is None:
                flow = DecayingUse(0, now)
                if not self._peers.add_flow(identity, entity, flow):
                    self.status.skipped["too_many_entities"] += 1
                    continue
            delta = use.total - flow.total
            older = first and use.total > use.recent  # part of the total is older use, never heard here or forgotten
            history = resumed or flow.missed or (older and now - peer.complete <= self._forget_after(use.kind))
            flow.missed = False
            if history or older or delta < 0:  # use that is older than the window does not count
                delta = min(use.total if delta < 0 else delta, use.recent)
            flow.total = use.total
            if delta > 0:
                flow.add(delta, now, self.quiet)
            account = self._peer_account(entity, now)
            if account is not None:
                account.charge_others(delta, now, no_debt=history)

    def _peer_account(self, entity: UsageKey, now: float) -> UsageAccount | None:
        kind, name = entity
        found = self._by_kind.get(kind)
        return None if found is None else found.peer_account(kind, name, now)

    def step(self, now: float, *, publish: bool = True) -> list[MemberRecord]:
        """As `steps`, without a pause."""
        return at_once(self.steps(lambda: now, publish=publish))

    def steps(self, clock: Callable[[], float], *, publish: bool) -> Steps[list[MemberRecord]]:
        """Compute the shares once per interval. Returns the record to publish, if any.

        The caller passes `publish=False` while the last record is in flight. The presumed use of peers stays charged then.
        Records may be received between two steps. The steps of one call end before those of the next begin.
        """
        now = clock()
        yield from self._expire(now)
        self.status.reachable = now - self._own_message_at <= self.expiry
        self._connections.divide(self.status.members if self._fair_share and not self.status.reachable else 1)
        yield from self._count(clock)
        if now - self._settled < self.interval * 0.9:
            return []
        self._demands.divide(self._engine.group_buckets, self.interval, clock())
        if self._engine.settings.enforce:  # otherwise debts are forgiven
            yield from self._balances.follow(self._peer_account, clock, new=self._new)
        yield from self._settle(clock, hold=not publish)
        self._settled = now
        return [(yield from self._record(clock))] if publish else []

    def not_published(self) -> None:
        """The last record has failed: the next record repeats its use."""
        self._own.not_published()

    def final_records(self, now: float) -> list[MemberRecord]:
        """The last use, and a tombstone, after which peers forget this member at once."""
        at_once(self._count(lambda: now))
        records: list[MemberRecord] = []
        for _ in range(LAST_RECORDS):
            left_out = self.status.left_out_total
            records.append(at_once(self._record(lambda: now, last=True)))
            if self.status.left_out_total == left_out:
                break
        return [*records, (self.identity.encode(), None)]

    def _record(self, clock: Callable[[], float], *, last: bool = False) -> Steps[MemberRecord]:
        self._sequence += 1
        sequence, members = self._sequence, self.status.members
        self._messages.make(sequence, clock())
        connections, turns, left_out = self._connections.chosen(members, MAX_MESSAGE_BYTES // 4)
        demands, unpublished = self._demands.chosen(sequence, MAX_MESSAGE_BYTES // 8)
        balances = yield from self._balances.chosen(self._to_agree(clock()), self._own, sequence, members, clock)
        uses, waiting = yield from self._own.chosen(members, sequence, clock(), last=last)
        self.status.left_out_total += left_out + unpublished + waiting
        rows = (connections, demands, turns, balances)
        message = UseMessage(sequence, uses, (), *rows, self._interval, self._engine.settings.enforce)
        return self.identity.encode(), encode(message)

    def _count(self, clock: Callable[[], float]) -> Steps[None]:
        return self._own.count(chain.from_iterable(each.changed() for each in self._shared), self.quiet, clock)

    def _settle(self, clock: Callable[[], float], *, hold: bool) -> Steps[None]:
        now = clock()
        members, reachable = self.status.members, self.status.reachable
        quiet, then = self.quiet, self._as_of(now)
        stalled = then < now
        horizon = self.expiry if stalled else HORIZON_INTERVALS * self.interval
        enforced = self._engine.settings.enforce  # otherwise nobody waits, and no use is presumed
        alone = not enforced or (not reachable and not self._fair_share)
        self._engine.meters.part = Part(1.0 if alone else 1.0 / members, horizon if reachable else MAX_DEBT_SECONDS, self._turn)
        settled_for = (members, reachable, enforced, self.interval)
        changed, self._settled_for = settled_for != self._settled_for, settled_for
        presuming: dict[UsageKey, UsageAccount] = {}
        busy = () if changed else (yield from self._busy(now))
        self._in_use = busy
        for number, (entity, account) in enumerate(self._everyone() if changed else busy, 1):
            if number % PIECE == 0:
                yield
                now = clock()
                then = then if stalled else now
            meter = account.shared_meter()
            if meter is None:
                continue
            if not enforced:
                meter.settle(1.0, 0.0, now)
            elif reachable:
                own, flows = self._own.get(entity), self._peers.active.get(entity, {}).values()
                share = share_of(own, flows, members, self.interval, quiet, now, then, newest=meter.exact)
                users = users_of(own, len(flows), members, self.interval, quiet, now)
                meter.settle(share, horizon, now, users=users, hold=hold or stalled)
            elif self._fair_share:
                meter.settle(1.0 / members, MAX_DEBT_SECONDS, now, confirm=True)
            else:
                meter.settle(1.0, 0.0, now, confirm=True)  # peers may have used the presumed amounts without a message
            if meter.presumed > 0.0:
                presuming[entity] = account
        self._presuming = presuming

    def _to_agree(self, now: float) -> Iterable[tuple[UsageKey, UsageAccount]]:
        """The accounts whose balances peers should have: this member is the first one."""
        if self._new or not self._engine.settings.enforce:
            return ()
        if self._peers.stands_before(self.identity, NEW_MESSAGES, now - self.expiry):
            return ()
        return self._everyone() if self._balances.with_new(self.interval, now) else self._in_use

    def _everyone(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        return chain.from_iterable(each.accounts() for each in self._shared)

    def _busy(self, now: float) -> Steps[list[tuple[UsageKey, UsageAccount]]]:
        """The accounts with shared meters that hold presumed use, or have recent use here or at a peer.

        Only their shares may have changed.
        """
        oldest = now - 3 * self.quiet
        found = yield from self._own.since(oldest)
        for number, entity in enumerate(list(self._peers.active), 1):  # a list of pairs takes many times as long
            own, flows = self._own.get(entity), self._peers.active.get(entity, {})
            if (own is None or own.flow.at < oldest) and any(flow.at >= oldest for flow in flows.values()):
                account = self._peer_account(entity, now)
                if account is not None:
                    found.append((entity, account))
            if number % PIECE == 0:
                yield
        if self._presuming:
            known = {entity for entity, _ in found}
            found += [each for each in self._presuming.items() if each[0] not in known]
        return found

    def _as_of(self, now: float) -> float:
        """The time to which the state of the peers refers. It stands still without messages, as in a leader election."""
        current = now - self._own_message_at <= HORIZON_INTERVALS * self.interval
        return now if current or self._own_message_at == float("-inf") else self._own_message_at

    # A restored balance contains use of peers. With the saved totals, this member does not charge that use again.

    def peers(self) -> list[str]:
        """The identities of peers with more than one message."""
        return self._peers.living()

    def totals_of(self, identity: str) -> PeerTotals | None:
        """Returns None for a peer that has left."""
        return self._peers.totals_of(identity)

    def restore_peer(self, saved: PeerTotals, heard: float, now: float) -> None:
        """Continue from the saved totals of a peer that sent its last message at `heard` or before.

        After a short gap, all use since then counts; after a long gap, only recent use. A later version may have saved kinds
        that are unknown here.
        """
        if saved.identity != self.identity:
            known = {entity: total for entity, total in saved.totals.items() if entity[0] in self._by_kind}
            self._peers.restore(PeerTotals(saved.identity, saved.sequence, known), heard, now, self.expiry)

    def _expire(self, now: float) -> Steps[None]:
        forget = max(FORGET_SECONDS, self.expiry)
        peers = self._peers.by_identity
        if peers:
            # A peer that comes back publishes its totals again, so it stays as long as its use.
            for identity in [each for each, peer in peers.items() if now - peer.heard > forget and not peer.flows]:
                self._forget(identity)
            for identity, peer in peers.items():
                if now - peer.heard > self.expiry:
                    self._connections.forget(identity)
                    self._demands.forget(identity)
        if now - self._own_message_at <= self.expiry or self._own_message_at == float("-inf"):
            expiry, then = self.expiry, self._as_of(now)
            living = [peer for peer in peers.values() if peer.alive and then - peer.heard <= expiry]
            self.status.members = 1 + len(living)
            self._slowest = max([peer.interval for peer in living], default=0.0)
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            # Own totals are kept longer than peers keep them: a peer would take one that begins anew for an old one.
            kept = {kind: self._forget_after(kind) for kind in self._by_kind}
            yield from self._own.sweep({kind: now - 2.0 * seconds - SWEEP_SECONDS for kind, seconds in kept.items()})
            yield from self._peers.sweep({kind: now - seconds for kind, seconds in kept.items()})

    def _forget(self, identity: str) -> None:
        if self._peers.forget(identity):
            self._connections.forget(identity)
            self._demands.forget(identity)
