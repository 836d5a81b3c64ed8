"""This member's share of an entity's quota, from its own use and from the use that its peers have published."""

from collections.abc import Collection
from typing import Final

from gateway.features.sharing.shared_usage import DecayingUse, OwnUse

HORIZON_INTERVALS: Final = 3.0
"""A member presumes the use of its peers for this number of intervals, because their messages arrive within this time."""

_EVEN: Final = 0.5
"""The part of a quota that is divided evenly; the rest is divided by use. So shares become even if all members want more."""


def share_of(
    own: OwnUse | None,
    flows: Collection[DecayingUse],
    members: int,
    interval: float,
    quiet: float,
    now: float,
    then: float,
    *,
    newest: bool,
) -> float:
    """One half is divided evenly, the other half by recent use. `flows` are the uses by peers, as they were at `then`.

    Before the own use is known, the quota is divided by the number of members, because every member may begin to use it. Use
    counts as known after some intervals: some peers that begin together are heard later. `newest`: unpublished use counts.
    """
    others = [flow.recent(then, quiet) for flow in flows if then - flow.at <= quiet]
    if own is None or now - own.flow.at > quiet or now - own.began < HORIZON_INTERVALS * interval:
        return 1.0 / max(members, len(others) + 1)
    # Peers know the published use only. In a burst, newer use would make the sum of all shares larger than 1.
    used = max(own.flow.recent(now, quiet) - (0 if newest else own.flow.total - own.published), 0.0)
    theirs = sum(others)
    by_use = used / (used + theirs) if used + theirs > 0.0 else 1.0
    return _EVEN / (len(others) + 1) + (1.0 - _EVEN) * by_use


def users_of(own: OwnUse | None, known: int, members: int, interval: float, quiet: float, now: float) -> int:
    """The peers that use an entity, `known` by their messages: perhaps all, until small uses have been published."""
    young = own is None or now - own.since < quiet + HORIZON_INTERVALS * interval
    return members if known and young else known
