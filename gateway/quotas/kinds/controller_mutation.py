"""Partitions that a client creates or deletes (KIP-599)."""

from gateway.quotas.kinds.kind import Charge, FullRequest, QuotaKind, Unit
from gateway.quotas.spread_rate import SpreadRate
from gateway.quotas.token_bucket import TokenBucket
from protocol.api_keys import ApiKey

KIND = QuotaKind(
    name="controller_mutation",
    config_key="controller_mutation_rate",
    unit=Unit("partitions"),
    description="partitions per second that the entity may create or delete",
    order=2,
    in_kafka=True,
    charge=Charge(
        frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.METADATA}), by="request"
    ),
    integral=False,
    meters={"token_bucket": TokenBucket.for_mutations, "rate": SpreadRate},
    at_each_broker=False,  # the active controller counts
    full_request=FullRequest(50, "one topic of 50 partitions", "create topics with fewer partitions"),
)
