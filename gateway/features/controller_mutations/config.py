"""`quotas.mutations`: the algorithm of the mutation quota."""

from typing import Literal

from gateway.config.section import Section, WindowConfig, described


class MutationsConfig(Section):
    """`quotas.mutations`: the algorithm of controller_mutation_rate (KIP-599)."""

    algorithm: Literal["token_bucket", "rate"] = described(
        "Algorithm of controller_mutation_rate: a token bucket, or Kafka's rate over the window.", "token_bucket"
    )
    window: WindowConfig | None = described(
        "Window of controller_mutation_rate (Kafka: `controller.quota.window.*`).", None, absent="`quotas.window`"
    )
