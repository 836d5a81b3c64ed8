"""A member that restarts with its saved usage neither forgets use nor charges use twice."""

import pytest

from gateway.features.sharing.known_peers import MAX_MEMBERS
from gateway.features.sharing.member import Member
from gateway.quotas.recent_use import BucketUse, entity_uses, restore_entity
from tests.gateway.features.sharing.test_member import INTERVAL, LAG, LIMIT, Fleet, begun, settled


def restart(fleet: Fleet, old: int, new: int, seconds: float = 0.0, *, forgets: bool = False) -> None:
    """Kill `old`. After `seconds`, start it again as another member `new`, with the usage saved at the kill."""
    engine, member = fleet.engines.pop(old), fleet.members.pop(old)
    saved = list(entity_uses(engine, engine.buckets(), fleet.now))
    known = [found for identity in member.peers() if (found := member.totals_of(identity)) is not None]
    heard = fleet.now
    fleet.run(seconds)
    fleet.join(new)
    for each in saved:
        restore_entity(fleet.engines[new], BucketUse(each.kind, each.tags, each.use.aged(seconds)), fleet.now)
    # The log is read after the restart, and not before as in `join`.
    fleet.members[new] = Member(f"{new + 1:016x}", fleet.engines[new], INTERVAL, fleet.now)
    for each in () if forgets else known:
        fleet.members[new].restore_peer(each, heard, fleet.now)
    for key, value in fleet.compacted():
        fleet.members[new].receive(key, value, fleet.now)


def balances(fleet: Fleet) -> list[int]:
    return [round(fleet.tokens(number)) for number in sorted(fleet.members)]


def test_use_before_restart_is_charged_once() -> None:
    fleet = begun(2)
    fleet.use(0, 6_000)
    settled(fleet)
    before = fleet.tokens(1)
    restart(fleet, 1, 2)
    assert fleet.tokens(2) == pytest.approx(before)
    fleet.run(1.0)
    assert fleet.tokens(2) == pytest.approx(before + LIMIT)


def test_forgotten_peers_would_be_charged_again() -> None:
    fleet = begun(2)
    fleet.use(0, 6_000)
    settled(fleet)
    restart(fleet, 1, 2, forgets=True)
    fleet.use(0, 100)
    fleet.run(1.0)
    assert fleet.tokens(2) < fleet.tokens(0) - 4_000


def test_own_use_before_restart_still_counts_for_all() -> None:
    fleet = begun(3)
    fleet.use(0, 6_000)
    fleet.run(INTERVAL)
    restart(fleet, 0, 3)
    settled(fleet)
    assert max(balances(fleet)) - min(balances(fleet)) <= LAG
    assert max(balances(fleet)) <= 4_000 + LIMIT + 2 * LAG


@pytest.mark.parametrize("seconds", [INTERVAL, 1.0, 2.0])
def test_peer_use_during_restart_is_charged_in_full(seconds: float) -> None:
    fleet = begun(2)
    fleet.use(0, 6_000)
    fleet.run(INTERVAL)
    fleet.use(0, 3_000)  # published while the peer is away
    restart(fleet, 1, 2, seconds)
    fleet.use(0, 500)
    settled(fleet)
    assert fleet.tokens(2) == pytest.approx(fleet.tokens(0), abs=LAG + 1.0)


def test_long_restart_counts_recent_use_then_peers_debt() -> None:
    fleet = begun(2)
    fleet.use(0, 10_000)
    fleet.run(INTERVAL)
    fleet.use(0, 9_000)  # published while the peer is away for longer than gateways wait for a peer
    restart(fleet, 1, 2, 5.0)
    assert fleet.tokens(2) == pytest.approx(5_000 + LAG, abs=LAG)
    fleet.use(0, 500)
    fleet.run(2 * INTERVAL)
    assert fleet.tokens(0) < -3_000
    assert fleet.tokens(2) == pytest.approx(fleet.tokens(0), abs=LAG), "the peer has published its debt"


def test_restored_peers_are_members_until_they_expire() -> None:
    fleet = begun(3)
    restart(fleet, 2, 3)
    member = fleet.members[3]
    member.step(fleet.now)
    assert member.status.members == 3
    del fleet.members[1]
    fleet.run(200 * INTERVAL)
    assert member.status.members == 2
    fleet.run(400 * INTERVAL)
    assert f"{2:016x}" not in member.peers()


def test_remembered_peers_are_bounded_without_self() -> None:
    fleet = begun(2)
    member = fleet.members[0]
    (identity,) = member.peers()
    known = member.totals_of(identity)
    assert known is not None
    assert member.totals_of("no such member") is None
    fresh = Member(identity, fleet.engines[0], INTERVAL, fleet.now)
    fresh.restore_peer(known, fleet.now, fleet.now)
    assert fresh.peers() == []
    for number in range(MAX_MEMBERS + 1):
        fresh.restore_peer(type(known)(f"{number + 100:016x}", 1, {}), fleet.now, fleet.now)
    assert len(fresh.peers()) == MAX_MEMBERS
