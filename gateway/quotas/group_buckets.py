"""The buckets of groups that share a capacity: demand, division, and the rates of the buckets until the next division.

A client's request is charged to its own bucket and to its group's. The meter of that bucket charges the groups above.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import ClientQuotaEntity, Resolution, Source, Tags
from gateway.quotas.group_meter import LEAF_BURST_SECONDS, EntitledBucket, GroupMeter
from gateway.quotas.group_tree import KindTree
from gateway.quotas.groups import Group
from gateway.quotas.kinds import KINDS, QuotaKind
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.shared_meter import Part, SharedMeter

INTERVAL_SECONDS: Final = 0.2
"""The time between two divisions of a gateway that shares its quotas with no other gateway."""

_NOTABLE_RAISE: Final = 1.25
_LONG_DELAY_SECONDS: Final = 0.5

Demands = Mapping[tuple[str, str], float]
"""The demand per second by kind and group; `inf` if it has no bound. Groups without a demand are left out."""


@dataclass(frozen=True, slots=True)
class GroupShareRow:
    """One group's part of one kind. Amounts are in the kind's unit per second.

    `use` is the average over the quota window, through all gateways. `lent` is the part of the entitlement that others may use
    now, `borrowed` the part of the allocation above the entitlement. `wants_more`: one of its clients has to wait.
    """

    kind: str
    group: str
    parent: str
    level: int
    weight: float
    guarantee: float
    ceiling: float | None
    entitlement: float
    allocation: float
    wants_more: bool
    use: float

    @property
    def borrowed(self) -> float:
        return max(0.0, self.allocation - self.entitlement)

    @property
    def lent(self) -> float:
        # A root has the whole capacity, and no group beside it that could use the rest.
        return max(0.0, self.entitlement - self.allocation) if self.parent else 0.0


class _KindShares:
    """The tree of one kind, and the buckets of its groups."""

    __slots__ = ("buckets", "counted", "demands", "found", "quiet", "tree")

    def __init__(self) -> None:
        self.tree: KindTree = _EMPTY
        self.buckets: dict[str, Bucket] = {}
        self.counted: dict[str, int] = {}  # the totals of leaves at the last measurement
        self.demands: list[float] = []
        self.found: list[float] = []
        self.quiet = False  # the last division found no demand

    def follow(self, tree: KindTree) -> None:
        self.tree = tree
        self.buckets = {name: bucket for name, bucket in self.buckets.items() if name in tree.positions}
        self.demands = [0.0] * len(tree.groups)
        self.found = [0.0] * len(tree.groups)
        self.quiet = False


class GroupBuckets:
    """Divides the capacities of all kinds. `interval` is the time between two calls of `divide`, in seconds.

    `shared`: the meters can be charged with the use of peers. `raised` is set if a group has got a larger share while its
    clients wait by the old one. The caller resets it.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._kinds: dict[str, _KindShares] = {}
        self._interval = INTERVAL_SECONDS
        self._measured = -inf
        self.raised = False

    @property
    def active(self) -> bool:
        """True if some groups share a capacity."""
        return len(self._kinds) > 0

    def follow(self, groups: Sequence[Group], table: QuotaTable) -> None:
        """Follow a change of the groups or of their ceilings. The caller then calls `regroup` for each bucket of a group."""
        kept: dict[str, _KindShares] = {}
        if not {group.parent for group in groups} <= {None}:
            for name, kind in KINDS.items():
                if kind.config_key in table.keys:
                    tree = KindTree(kind.config_key, groups, table)
                    if tree.groups:
                        kept[name] = self._kinds.get(name) or _KindShares()
                        kept[name].follow(tree)
        self._kinds = kept

    def in_tree(self, kind: str, group: str) -> bool:
        """True if the group shares a capacity of the kind with others."""
        shares = self._kinds.get(kind)
        return shares is not None and group in shares.tree.positions

    def resolution(self, kind: str, resolution: Resolution) -> Resolution:
        """The resolution with the smallest ceiling of the group and the groups above it."""
        name = resolution.tags.group
        shares = self._kinds.get(kind)
        if name is None or shares is None or name not in shares.tree.limits:
            return resolution
        entity = resolution.entity or ClientQuotaEntity(group=name)
        return replace(resolution, limit=shares.tree.limits[name], entity=entity, source=resolution.source or Source.FILE)

    def in_order(self, kind: str, buckets: Mapping[Tags, Bucket]) -> list[Bucket]:
        """The buckets of groups, those of parents first."""
        shares = self._kinds.get(kind)
        positions = {} if shares is None else shares.tree.positions
        found = [(positions.get(tags.group, 0), bucket) for tags, bucket in buckets.items() if tags.group is not None]
        found.sort(key=lambda each: each[0])
        return [bucket for _, bucket in found]

    def parent(self, kind: str, tags: Tags) -> Tags | None:
        """The tags of the group above, if it shares a capacity of the kind as well."""
        name = tags.group
        above = None if name is None else self._kinds[kind].tree.parents.get(name)
        return None if above is None else Tags(None, None, group=above)

    def meter(self, kind: QuotaKind, tags: Tags, parent: Bucket | None, part: Part, now: float) -> GroupMeter:
        """A new meter for a group's bucket. `part` is this gateway's."""
        shares = self._kinds[kind.name]
        name = tags.group or ""
        rate = shares.tree.entitlements[shares.tree.positions[name]]
        full = 1.0 if kind.full_request is None else float(kind.full_request.amount)
        inner = EntitledBucket(rate, rate, self._burst_seconds(shares, name), full, now)
        own = SharedMeter(inner, rate, *part, exact=True) if self._shared else inner
        above = None if parent is None or not isinstance(parent.meter, GroupMeter) else parent.meter
        meter = GroupMeter(own, inner, rate, above)
        meter.set_rates(rate, rate, shares.tree.limits[name], self._interval, now)
        return meter

    def add(self, bucket: Bucket) -> None:
        """Divide for a new bucket from now on."""
        name = bucket.resolution.tags.group
        shares = self._kinds.get(bucket.kind.name)
        if name is not None and shares is not None and isinstance(bucket.meter, GroupMeter):
            shares.buckets[name] = bucket
            shares.counted[name] = bucket.amount_total
            if name not in shares.tree.leaves:  # the total goes on, if the group had clients of its own until now
                bucket.meter.used = max(bucket.meter.used, float(bucket.amount_total))
            shares.quiet = False

    def regroup(self, bucket: Bucket, parent: Bucket | None) -> None:
        """Follow the change of a bucket's place. Its use and its debt stay."""
        name, meter = bucket.resolution.tags.group, bucket.meter
        if name is not None and isinstance(meter, GroupMeter):
            meter.parent = None if parent is None or not isinstance(parent.meter, GroupMeter) else parent.meter
            meter.set_burst(self._burst_seconds(self._kinds[bucket.kind.name], name))
            self.add(bucket)

    def measure(self, now: float) -> Demands:
        """The demand of this gateway's clients since the last call: the rate, or `inf` if their share was too small."""
        seconds = now - self._measured
        found: dict[tuple[str, str], float] = {}
        for kind, shares in self._kinds.items():
            for name, bucket in shares.buckets.items():
                meter = bucket.meter
                if not isinstance(meter, GroupMeter):
                    continue
                if name not in shares.tree.leaves:
                    bucket.amount_total = int(meter.used)
                    continue
                used = bucket.amount_total - shares.counted[name]
                shares.counted[name] = bucket.amount_total
                if meter.topped_up or bucket.episode.lasted_beyond(self._measured):
                    meter.topped_up = False
                    found[kind, name] = inf
                elif used > 0:
                    found[kind, name] = used / seconds
        self._measured = now
        return found

    def divide(self, demands: Demands, interval: float, now: float) -> None:
        """Set the rates of all groups until the next division, `interval` seconds later."""
        changed = interval != self._interval
        self._interval = interval
        for shares in self._kinds.values():
            shares.demands = [0.0] * len(shares.demands)
        for (kind, name), demand in demands.items():
            known = self._kinds.get(kind)
            if known is not None and name in known.tree.leaves:
                known.demands[known.tree.positions[name]] = demand
        for shares in self._kinds.values():
            idle = not any(shares.demands)
            if idle and shares.quiet and not changed:
                continue
            shares.quiet = idle
            shares.found = shares.tree.tree.divide(shares.demands)
            entitlements = shares.tree.entitlements
            for name, bucket in shares.buckets.items():
                meter, position = bucket.meter, shares.tree.positions[name]
                if not isinstance(meter, GroupMeter):
                    continue
                if changed and name not in shares.tree.leaves:
                    meter.set_burst(interval)
                rate = max(shares.found[position], entitlements[position])
                if rate > _NOTABLE_RAISE * meter.limit and meter.delay(now) > _LONG_DELAY_SECONDS:
                    self.raised = True
                meter.set_rates(shares.found[position], entitlements[position], shares.tree.limits[name], interval, now)
                if not bucket.policy.enforce and name not in shares.tree.leaves:
                    meter.forgive(now)  # nobody waits, so nobody pays a debt off; buckets of leaves forgive what they count

    def rows(self, now: float) -> Iterator[GroupShareRow]:
        """Each group's part in the last division, by kind, parents first."""
        for kind, shares in self._kinds.items():
            tree = shares.tree
            levels = [0] * len(tree.groups)
            for position, group in enumerate(tree.groups):
                share, bucket = tree.shares[position], shares.buckets.get(group.name)
                levels[position] = levels[share.parent] + 1 if share.parent >= 0 else 0
                yield GroupShareRow(
                    kind=kind,
                    group=group.name,
                    parent=tree.parents[group.name] or "",
                    level=levels[position],
                    weight=share.weight,
                    guarantee=share.guarantee,
                    ceiling=None if share.ceiling == inf else share.ceiling,
                    entitlement=tree.entitlements[position],
                    allocation=shares.found[position],
                    wants_more=shares.demands[position] == inf,
                    use=0.0 if bucket is None else bucket.rate_of_all(now),
                )

    def _burst_seconds(self, shares: _KindShares, name: str) -> float:
        return LEAF_BURST_SECONDS if name in shares.tree.leaves else self._interval


_EMPTY: Final = KindTree("", (), QuotaTable())
