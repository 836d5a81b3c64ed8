"""Settings of an engine with groups."""

from collections.abc import Sequence
from typing import Any

from gateway.quotas.entity import EntityQuota
from gateway.quotas.groups import Group
from gateway.quotas.settings import QuotaSettings


def grouped(groups: Sequence[Group], *rows: EntityQuota, **rest: Any) -> QuotaSettings:
    """Settings with these groups, and the quotas of other entities in `rows`."""
    return QuotaSettings((*rows, *(group.quota for group in groups)), groups=tuple(groups), **rest)
