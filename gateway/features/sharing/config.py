"""`sharing`: quotas are held by all gateways together, which tell each other through a topic what they have let through."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.section import Section, TopicName, invalid

WhenUnreachable = Literal["local", "fair_share"]


class SharingConfig(Section):
    """All gateways that name the same `topic` share their quotas; they should have the same `interval_ms`.

    `when_unreachable`: without the topic each gateway gives everybody the whole quota (`local`), or its part by the number of
    gateways that were last there (`fair_share`). `quotas_topic` has the quotas that are set through the API.
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
        """Whether a gateway gives its part only while the topic is out of reach."""
        return self.when_unreachable == "fair_share"

    @property
    def interval(self) -> float:
        """Seconds between two messages of a gateway."""
        return self.interval_ms / 1000.0
