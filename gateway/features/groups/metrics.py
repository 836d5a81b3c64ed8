"""The division of capacities among groups, by group and kind."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.admin.metrics.row import Labels, Read, Row, Value
from gateway.admin.metrics.scrape import Scrape
from gateway.quotas.group_buckets import GroupShareRow


@dataclass(frozen=True, slots=True)
class GroupsReport:
    """Each group's part of each kind, parents before the groups below them."""

    rows: tuple[GroupShareRow, ...]


def _per_group(read: Callable[[GroupShareRow], float | None]) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        report = scrape.report(GroupsReport)
        for row in () if report is None else report.rows:
            value = read(row)
            if value is not None:
                yield (row.group, row.kind), value

    return values


def _levels(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    report = scrape.report(GroupsReport)
    for row in () if report is None else report.rows:
        yield (row.group, row.kind, row.parent), row.level


_LABELS = ("group", "kind")

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_group_guarantee", "Part of the parent's capacity that the group may use at any time, per second.",
          _LABELS, _per_group(lambda row: row.guarantee or None), merge="max"),
    Value("gauge", "weir_group_entitlement", "Part that the group has while every group wants everything, per second.",
          _LABELS, _per_group(lambda row: row.entitlement), merge="max"),
    Value("gauge", "weir_group_allocation", "Part that the group got in the last division, of all gateways that share, per"
          " second.", _LABELS, _per_group(lambda row: row.allocation), merge="max"),
    Value("gauge", "weir_group_ceiling", "Own ceiling of a group that shares a capacity, per second. Absent without one.",
          _LABELS, _per_group(lambda row: row.ceiling), merge="max"),
    Value("gauge", "weir_group_cluster_usage", "Use of a group that shares a capacity, by all gateways that share, per second.",
          _LABELS, _per_group(lambda row: row.use), merge="max"),
    Value("gauge", "weir_group_level", "Level of a group in its tree. The whole has level 0, and an empty parent.",
          (*_LABELS, "parent"), _levels, merge="max"),
    Value("gauge", "weir_group_wants_more", "1 while a client of the group waits for the group's part.",
          _LABELS, _per_group(lambda row: row.wants_more), merge="max"),
)  # fmt: skip
