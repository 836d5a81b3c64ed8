"""`sharing`: several gateways enforce one quota together. They publish their use in a topic."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.section import Section, TopicName, invalid

WhenUnreachable = Literal["local", "fair_share"]


class SharingConfig(Section):
    """All gateways with the same `topic` share their quotas; they should have the same `interval_ms`.

    `when_unreachable`: without the topic a gateway grants the whole quota (`local`), or the quota divided by the last known
    number of gateways (`fair_share`). `quotas_topic` has the quotas that are set through the API.
    """

    topic: TopicName = "__weir_usage"
    quotas_topic: TopicName = "__weir_quotas"
    interval_ms: Annotated[int, Field(ge=50, le=5_000)] = 200
    when_unreachable: WhenUnreachable = "local"

    @model_validator(mode="after")
    def _apart(self) -> "SharingConfig":
        if self.topic == self.quotas_topic:
            raise invalid("topic and quotas_topic name the same topic", "give each a topic of its own")
        return self

    @property
    def fair_share(self) -> bool:
        return self.when_unreachable == "fair_share"

    @property
    def interval(self) -> float:
        """In seconds."""
        return self.interval_ms / 1000.0
