"""Where the accounts are that are shared: clients' buckets, topics, listeners."""

from collections.abc import Iterable
from typing import Protocol

from gateway.quotas.entity import Tags
from gateway.quotas.shared_meter import UsageAccount

Entity = tuple[str, Tags | str]
"""A kind, and what is one account of it: the tags of a bucket, or a name."""


class Book(Protocol):
    """Some kinds of accounts."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its entities, that no other book has."""

    def accounts(self) -> Iterable[tuple[Entity, UsageAccount]]:
        """All of them. Nothing may be changed meanwhile."""

    def changed(self) -> Iterable[tuple[Entity, UsageAccount]]:
        """Those whose `total()` is not their `shared_total`."""

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The account here of what another gateway names so, made if it is missing. None where it has no quota here, or where
        there is no room."""
