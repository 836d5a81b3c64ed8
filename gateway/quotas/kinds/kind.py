"""What a quota kind is: its names, its unit, the entities that can have one, and how its use is reckoned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.quotas.meter import Meter, Window
from gateway.quotas.rate import WindowMeter
from gateway.quotas.small import FullRequest
from gateway.quotas.token_bucket import TokenBucket

NewMeter = Callable[[float, Window, float], Meter]
"""(limit per second, the quota window, now) -> the meter of one bucket."""

BYTE_METERS: Mapping[str, NewMeter] = {
    "token_bucket": TokenBucket.for_bytes,
    "window": lambda limit, window, now: WindowMeter(limit, window),  # noqa: ARG005
}


@dataclass(frozen=True, slots=True)
class QuotaKind:
    """One thing that is measured and limited.

    `name` is the value of the metric label `kind`; `config_key` is Kafka's own name of the quota, in the config file and in
    AlterClientQuotas; `entity_types` are those of Kafka's ClientQuotaEntity that can carry it; `integral` quotas are whole
    numbers of at most `largest`, that of Kafka's type for it; `meters` are the algorithms that there are for it, by their
    names in the config file, the default one first; `full_request` is None where no mute can end a client's session.
    """

    name: str
    config_key: str
    unit: str
    description: str
    order: int
    entity_types: frozenset[str] = frozenset({"user", "client-id"})
    integral: bool = True
    largest: int = 2**63 - 1
    meters: Mapping[str, NewMeter] = field(default_factory=lambda: BYTE_METERS)
    full_request: FullRequest | None = None
