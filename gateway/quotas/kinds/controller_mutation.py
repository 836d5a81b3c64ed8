"""Partitions that a client creates or deletes (KIP-599): by CreateTopics, DeleteTopics and CreatePartitions."""

from gateway.quotas.kinds.kind import QuotaKind
from gateway.quotas.small import FullRequest
from gateway.quotas.spread_rate import SpreadRate
from gateway.quotas.token_bucket import TokenBucket

KIND = QuotaKind(
    name="controller_mutation",
    config_key="controller_mutation_rate",
    unit="partitions",
    description="partitions per second that the entity may create or delete",
    order=2,
    integral=False,
    meters={"token_bucket": TokenBucket.for_mutations, "rate": SpreadRate},
    full_request=FullRequest(50, "one topic of 50 partitions", "create topics with fewer partitions"),
)
