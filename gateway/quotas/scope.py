"""The reach of a limit (`quotas.scope`): the whole cluster, or each broker by itself as in Kafka.

With `scope: broker`, the tags of a bucket name its broker. Kafka has no groups, and its active controller alone counts
controller mutations. These limits hold for the whole cluster in either case.
"""

from dataclasses import replace
from typing import Final

from gateway.quotas.entity import OTHER, ClientQuotaEntity, Resolution, Tags
from gateway.quotas.kinds import KINDS

BROKER: Final = "broker"
"""The value of `quotas.scope` with which each broker has buckets of its own."""


def at_broker(resolution: Resolution, kind: str, broker: int, *, by_broker: bool) -> Resolution:
    """The quota with the tags of the bucket of that broker, if brokers have buckets of their own."""
    tags = resolution.tags
    if not is_separate(tags, kind, by_broker=by_broker):
        return resolution
    return replace(resolution, tags=replace(tags, broker=broker))


def in_scope(tags: Tags, kind: str, *, by_broker: bool) -> bool:
    """True if a bucket of these tags exists in this scope. A gateway with another config may share use by other tags."""
    return (tags.broker is not None) == is_separate(tags, kind, by_broker=by_broker)


def overflow_tags(entity: ClientQuotaEntity | None, broker: int | None = None) -> Tags:
    """The tags of the bucket for all clients of a quota level that found no room."""
    return Tags(OTHER, str(entity or OTHER), overflow=True, broker=broker)


def is_separate(tags: Tags, kind: str, *, by_broker: bool) -> bool:
    """True if each broker has a bucket of its own in place of one with these tags."""
    return by_broker and tags.group is None and KINDS[kind].at_each_broker
