"""The reach of a limit (`quotas.scope`): the whole cluster, or each broker by itself as in Kafka.

With `scope: broker`, the tags of a bucket name its broker. Kafka has no groups, and its active controller alone counts
controller mutations. These limits hold for the whole cluster in either case.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import BOOTSTRAP, OTHER, ClientQuotaEntity, Resolution, Tags
from gateway.quotas.kinds import KINDS
from gateway.whole_number import whole_number

BROKER: Final = "broker"
"""The value of `quotas.scope` with which each broker has buckets of its own."""


def node_id(text: str) -> int | None:
    """The node id, or `BOOTSTRAP`, in a message of another gateway. None if the text is no node id."""
    return BOOTSTRAP if text == str(BOOTSTRAP) else whole_number(text)


def at_broker(resolution: Resolution, kind: str, broker: int, *, by_broker: bool) -> Resolution:
    """The quota with the tags of the bucket of that broker, if brokers have buckets of their own."""
    tags = resolution.tags
    if not is_separate(tags, kind, by_broker=by_broker):
        return resolution
    return replace(resolution, tags=replace(tags, broker=broker))


def in_scope(tags: Tags, kind: str, *, by_broker: bool) -> bool:
    """True if a client can have a bucket of these tags in this scope. Messages of other gateways may have other tags."""
    if (tags.ip is not None or tags.group is not None) and (
        tags.user is not None or tags.client_id is not None or None not in (tags.ip, tags.group)
    ):
        return False
    return (tags.broker is not None) == is_separate(tags, kind, by_broker=by_broker)


def overflow_tags(entity: ClientQuotaEntity | None, broker: int | None = None) -> Tags:
    """The tags of the bucket for all clients of a quota level that found no room."""
    return Tags(OTHER, str(entity or OTHER), overflow=True, broker=broker)


def is_separate(tags: Tags, kind: str, *, by_broker: bool) -> bool:
    """True if each broker has a bucket of its own in place of one with these tags."""
    return by_broker and tags.group is None and KINDS[kind].at_each_broker


def buckets_of(buckets: Mapping[Tags, Bucket], entities: Set[ClientQuotaEntity], *, by_broker: bool) -> Iterable[Bucket]:
    """The buckets that may have the quota of one of these entities: all if one is a default, or if they are many."""
    if len(entities) > len(buckets) or not all(entity.names_only for entity in entities):
        return buckets.values()
    tags = [entity.tags for entity in entities] + [overflow_tags(entity) for entity in entities]
    if by_broker and tags:
        names = {(each.user, each.client_id, each.ip) for each in tags}
        return [each for at, each in buckets.items() if (at.user, at.client_id, at.ip) in names]
    return [bucket for each in tags if (bucket := buckets.get(each)) is not None]
