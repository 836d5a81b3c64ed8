"""The windows over which use is measured, and the algorithm of the quota of partitions."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.section import Section


class WindowConfig(Section):
    """`quotas.window`: Kafka's quota.window.num and quota.window.size.seconds. They set the burst too."""

    samples: Annotated[int, Field(ge=2, le=10_000)] = 11
    seconds: Annotated[int, Field(ge=1, le=86_400)] = 1


class MutationsConfig(Section):
    """`quotas.mutations`: the algorithm of controller_mutation_rate (KIP-599).

    `window` is Kafka's controller.quota.window.num and controller.quota.window.size.seconds; without it `quotas.window` holds.
    """

    algorithm: Literal["token_bucket", "rate"] = "token_bucket"
    window: WindowConfig | None = None
