"""The tree of groups of one quota kind: its shares for the division, and the smallest ceiling above each group."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from gateway.quotas.fair_share import ROOT, Share, ShareTree
from gateway.quotas.groups import Group
from gateway.quotas.quota_table import QuotaTable

MAX_LEVELS: Final = 8
"""Each request is charged to every group above its client, so the tree is kept flat."""

LEAST_PART: Final = 0.01
"""Of a ceiling, for all groups together. The guarantees beside a group may fill the ceiling. The group then gets this little,
because a rate of 0 has no throttle time."""


def lineage(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """A group and the groups above it, the root last. In a cycle, the path ends before its first group comes again."""
    found = [name]
    above = parents.get(name)
    while above is not None and above in parents and above not in found and len(found) < MAX_LEVELS:
        found.append(above)
        above = parents.get(above)
    return found


class KindTree:
    """The groups that share a capacity of one kind: those with a ceiling, their own or of a group above, and with a relative.

    A group without numbers of its own below such a ceiling has the weight 1. `limits` are the smallest ceilings on the paths.
    `entitlements` are those of `ShareTree`, and for a group without one a part of `LEAST_PART`. `positions` has the index of
    each group in the lists, by name.
    """

    __slots__ = ("entitlements", "groups", "leaves", "limits", "parents", "positions", "shares", "tree")

    def __init__(self, key: str, groups: Sequence[Group], table: QuotaTable) -> None:
        by_name = {group.name: group for group in groups}
        parents = {group.name: group.parent for group in groups}
        above = {group.parent for group in groups if group.parent in by_name}
        paths = [lineage(name, parents) for name in by_name if parents[name] in by_name or name in above]
        ceilings = {path[0]: ceiling(key, path[0], table) for path in paths}
        self.parents: dict[str, str | None] = {}
        self.limits: dict[str, float] = {}
        self.positions: dict[str, int] = {}
        self.groups: list[Group] = []
        self.shares: list[Share] = []
        for path in sorted(paths, key=len):
            name = path[0]
            limit = min([ceilings[each] for each in path])
            if limit == inf:
                continue
            parent = path[1] if len(path) > 1 and path[1] in self.positions else None
            group = by_name[name]
            self.parents[name] = parent
            self.limits[name] = limit
            self.positions[name] = len(self.groups)
            self.groups.append(group)
            position = ROOT if parent is None else self.positions[parent]
            weight, guarantee = group.weights.get(key, 1.0), group.guarantees.get(key, 0.0)
            self.shares.append(Share(position, weight, min(guarantee, limit), ceilings[name]))
        self.leaves = frozenset(self.positions) - {parent for parent in self.parents.values() if parent is not None}
        self.tree = ShareTree(self.shares)
        least = [LEAST_PART * self.limits[group.name] / len(self.groups) for group in self.groups]
        self.entitlements = [max(each, least[position]) for position, each in enumerate(self.tree.entitlements)]


def ceiling(key: str, group: str, table: QuotaTable) -> float:
    """The ceiling of a group: that of the quota API, else the file's."""
    limit = table.resolve_group(key, group).limit
    return inf if limit is None else limit
