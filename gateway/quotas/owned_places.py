"""The places that each owner of clients takes among the buckets of a kind.

Clients choose their client-ids, and a debt keeps a bucket for up to an hour. So one owner could fill all places with debts.
"""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import ANONYMOUS, Resolution, Tags, short_name
from gateway.quotas.scope import overflow_tags

OWNER_FACTOR: Final = 3
"""An owner may have that many times as many places as are free. Alone it gets three quarters; two owners leave a seventh."""

_PREFIX: Final = 64
"""The bits of an IPv6 address that tell owners apart: a host chooses the others itself."""


def owner_of(user: str, ip: str = "") -> str:
    """The one that answers for a client's names: its user, or the address of a client that has not authenticated.

    "" if neither is known.
    """
    if user and user != ANONYMOUS:
        return f"user={short_name(user)}"
    return str(IPv6Network((int(IPv6Address(ip)), _PREFIX), strict=False)) if ":" in ip else ip


class OwnedPlaces:
    """The places for buckets of one kind that have an owner. The engine has `places` of them, and `buckets` in all.

    Buckets that are known only from a peer or a file have no owner.
    """

    __slots__ = ("_by_owner", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._by_owner: dict[str, int] = {}

    def has_room(self, owner: str, buckets: int, places: int, *, renamed: bool) -> bool:
        """True if a new bucket of the owner gets a place. `renamed` is as for `acquire_path`."""
        # Half of the places are for first client-ids: a connection with ever new ones could take all of its owner's.
        if renamed and buckets >= (places + 1) // 2:
            return False
        if not owner:
            return buckets < places
        return self._by_owner.get(owner, 0) < OWNER_FACTOR * (places - self.taken)

    def place(
        self, owner: str, quota: Resolution, buckets: Mapping[Tags, Bucket], places: int, *, renamed: bool
    ) -> tuple[Tags, str]:
        """Take a place. Returns the tags of the new bucket, and the owner that has to give the place back (`Bucket.owner`).

        Without room, these are the tags of the bucket that the owner's further clients share, and no owner.
        """
        tags = quota.tags
        # The config bounds the number of groups, and a group without its own bucket could not be shared.
        if tags.group is not None or tags.overflow:
            return tags, ""
        if not self.has_room(owner, len(buckets), places, renamed=renamed):
            return self._shared_tags(owner, quota, buckets, places), ""
        if owner:
            self.taken += 1
            self._by_owner[owner] = self._by_owner.get(owner, 0) + 1
        return tags, owner

    def _shared_tags(self, owner: str, quota: Resolution, buckets: Mapping[Tags, Bucket], places: int) -> Tags:
        common = overflow_tags(quota.entity, quota.tags.broker)
        # An entity by name has the bucket for itself. Without a limit, nobody waits for the use of others.
        if quota.limit is None or quota.configured:
            return common
        own = replace(common, owner=owner)
        return own if own in buckets or len(buckets) - self.taken < places else common

    def give_back(self, owner: str) -> None:
        if owner:
            self.taken -= 1
            left = self._by_owner.pop(owner) - 1
            if left:
                self._by_owner[owner] = left
