"""The peers that a member has heard, and the use of each entity at each of them."""

from collections.abc import Iterable, Mapping

from gateway.features.sharing.shared_usage import PIECE, DecayingUse, Peer
from gateway.features.sharing.use_message import EntityUse
from gateway.quotas.owned_places import OWNER_FACTOR
from gateway.quotas.recent_use import PeerTotals
from gateway.quotas.shared_meter import UsageKey
from gateway.steps import Steps

MAX_MEMBERS = 2_000
MAX_FLOWS = 270_000
"""The maximum number of remembered totals: one for each entity at each peer. Those of first messages count as well. An owner
may have three times as many as are free, so one owner has at most 202 500."""

_Owner = tuple[str | None, ...]


def _owner_of(entity: UsageKey) -> _Owner:
    """The user or the group of an entity: a client may invent client-ids. All topics have one owner, and all other clients."""
    kind, name = entity
    return (kind,) if isinstance(name, str) else (name.user, name.group)


class KnownPeers:
    """The peers by identity. `active` has the use of each entity by peer, `flows` the number of all of these."""

    def __init__(self) -> None:
        self.by_identity: dict[str, Peer] = {}
        self.active: dict[UsageKey, dict[str, DecayingUse]] = {}
        self.flows = 0
        self._waiting = 0  # uses in the first messages of peers that are not alive yet
        self._owned: dict[_Owner, int] = {}  # `flows` by owner

    @property
    def full(self) -> bool:
        return len(self.by_identity) >= MAX_MEMBERS

    def add(self, identity: str, peer: Peer, uses: Iterable[EntityUse]) -> int:
        """Remember a peer by its first message. Returns the number of its uses that found no room."""
        self.by_identity[identity] = peer
        left_out = 0
        for use in uses:
            if self.flows + self._waiting < MAX_FLOWS:
                self._waiting += (use.kind, use.name) not in peer.uses
                peer.uses[use.kind, use.name] = use
            else:
                left_out += 1
        return left_out

    def begin(self, peer: Peer) -> dict[UsageKey, EntityUse]:
        """Take the uses of the first message of a peer that is alive now."""
        uses, peer.uses = peer.uses, {}
        self._waiting -= len(uses)
        return uses

    def add_flow(self, identity: str, entity: UsageKey, flow: DecayingUse) -> bool:
        """Remember the use of an entity that the peer has not used yet. False if there is no room, or none for its owner."""
        owner = _owner_of(entity)
        owned = self._owned.get(owner, 0)
        if owned >= OWNER_FACTOR * (MAX_FLOWS - self.flows - self._waiting):
            return False
        self._owned[owner] = owned + 1
        self.flows += 1
        self.by_identity[identity].flows[entity] = flow
        self.active.setdefault(entity, {})[identity] = flow
        return True

    def sweep(self, before: Mapping[str, float]) -> Steps[None]:
        """Forget the use that is older than `before` of its kind. Peers may leave between two steps."""
        for number, entity in enumerate(list(self.active), 1):
            flows, oldest = self.active.get(entity, {}), before[entity[0]]
            for identity in [identity for identity, flow in flows.items() if flow.at < oldest]:
                del self.by_identity[identity].flows[entity]
                self._remove(entity, identity)
            if number % PIECE == 0:
                yield

    def forget(self, identity: str) -> bool:
        """False if the peer is unknown."""
        peer = self.by_identity.pop(identity, None)
        if peer is None:
            return False
        self.begin(peer)
        for entity in peer.flows:
            self._remove(entity, identity)
        return True

    def _remove(self, entity: UsageKey, identity: str) -> None:
        flows = self.active[entity]
        del flows[identity]
        self.flows -= 1
        owner = _owner_of(entity)
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        if not flows:
            del self.active[entity]

    def stands_before(self, identity: str, messages: int, since: float) -> bool:
        """True if a living peer before `identity` was heard since then, and has sent more than so many messages.

        A peer that does not enforce quotas has no balances to follow, so it does not count.
        """
        return any(
            peer.alive and peer.enforced and peer.heard >= since and peer.sequence > messages and each < identity
            for each, peer in self.by_identity.items()
        )

    def living(self) -> list[str]:
        """The identities of peers with more than one message."""
        return [identity for identity, peer in self.by_identity.items() if peer.alive]

    def totals_of(self, identity: str) -> PeerTotals | None:
        """Returns None for a peer that has left."""
        peer = self.by_identity.get(identity)
        if peer is None or not peer.alive:
            return None
        return PeerTotals(identity, peer.sequence, {entity: flow.total for entity, flow in peer.flows.items()})

    def restore(self, saved: PeerTotals, heard: float, now: float, expiry: float) -> None:
        """As `Member.restore_peer`. A gap of more than `expiry` seconds is long."""
        if self.full and saved.identity not in self.by_identity:
            return
        peer = self.by_identity.setdefault(saved.identity, Peer(saved.sequence, heard, now, alive=True))
        peer.sequence = max(peer.sequence, saved.sequence)
        for entity, total in saved.totals.items():
            if entity not in peer.flows:
                self.add_flow(saved.identity, entity, DecayingUse(total, heard, missed=now - heard > expiry))
