"""`sharing`: several gateways enforce one quota together. They publish their use in a topic."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.section import Section, TopicName, described, invalid

MAX_INTERVAL_MS = 5_000

WhenUnreachable = Literal["local", "fair_share"]


class SharingConfig(Section):
    """`sharing`: all gateways with the same `topic` share their quotas."""

    topic: TopicName = described(
        "Compacted topic over which gateways report use to each other; Weir creates it.", "__weir_usage", changes="restart"
    )
    quotas_topic: TopicName = described(
        "Compacted topic with the quotas that clients set through the quota API.", "__weir_quotas", changes="restart"
    )
    interval_ms: Annotated[int, Field(ge=50, le=MAX_INTERVAL_MS)] = described(
        "Time between two reports of use; all gateways use the longest of their intervals.", 200, unit="milliseconds"
    )
    when_unreachable: WhenUnreachable = described(
        "A gateway's share while the topic can't be used: the whole quota (`local`), or the quota divided by the last known"
        " number of gateways (`fair_share`).",
        "local",
    )

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
