"""Where the accounts are that are shared: clients' buckets, topics, listeners."""

from collections.abc import Iterable
from typing import Protocol

from gateway.quotas.account import Account
from gateway.quotas.entity import Tags

Entity = tuple[str, Tags | str]
"""A kind, and what is one account of it: the tags of a bucket, or a name."""


class Book(Protocol):
    """Some kinds of accounts."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its entities, that no other book has."""

    def accounts(self) -> Iterable[tuple[Entity, Account]]:
        """All of them. Nothing may be changed meanwhile."""

    def changed(self) -> Iterable[tuple[Entity, Account]]:
        """Those whose `total()` is not their `shared_total`."""

    def counterpart(self, kind: str, name: Tags | str, now: float) -> Account | None:
        """The account here of what another gateway names so, made if it is missing. None where it has no quota here, or where
        there is no room."""
