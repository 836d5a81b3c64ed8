"""What a quota kind is: its names, its unit and the entities that can have one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaKind:
    """One thing that is measured and limited.

    `name` is the value of the metric label `kind`; `config_key` is Kafka's own name of the quota, in the config file and in
    AlterClientQuotas; `entity_types` are those of Kafka's ClientQuotaEntity that can carry it.
    """

    name: str
    config_key: str
    unit: str
    description: str
    order: int
    entity_types: frozenset[str] = frozenset({"user", "client-id"})
    integral: bool = True
