"""`quotas.volumes`: slow producers down before a volume of the cluster is full."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.endpoints import Port
from gateway.config.section import Section, TopicName, described, invalid
from gateway.features.volume_quotas.limits import Limit, LimitType, LimitTypeName
from gateway.whole_number import MAX_INT32, MAX_INT64

_LEAST_CLIENT_TIMEOUT_MS = 30_000
"""request.timeout.ms of the Java client, the shortest among the clients' defaults: a delay must be shorter."""


class LimitConfig(Section):
    """A limit of a volume: bytes in use, bytes to stay free, or percent (0 to 100) of the capacity to stay free."""

    type: LimitTypeName = described(
        "Measure of `level`: bytes in use, bytes to stay free, or percent of the capacity to stay free."
    )
    level: Annotated[float, Field(ge=0, le=MAX_INT64)] = described("Level of the limit.", unit="bytes or percent")

    @model_validator(mode="after")
    def _percent(self) -> "LimitConfig":
        if self.limit().above_100_percent:
            raise invalid("keeps more than 100 percent free", "give level in percent, from 0 to 100")
        return self

    def limit(self) -> Limit:
        return Limit(LimitType(self.type), self.level)


class AgentConfig(Section):
    """`quotas.volumes.agent`: broker, paths and admin port of `weir volumes publish`; the host of the port is `admin.host`."""

    broker_id: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = described(
        "The broker's `node.id`; the option `--broker-id` overrides it.", None
    )
    paths: Annotated[tuple[str, ...], Field(strict=False)] = described(
        "The broker's `log.dirs`; the option `--path` overrides them.", ()
    )
    admin_port: Port = described("Port of the agent's metrics and probes.", 9645)


class VolumesConfig(Section):
    """`quotas.volumes`: delays producers before a disk of the cluster is full."""

    enforce: bool = described(
        "`false`: Weir watches and shows volumes, but delays no producer. `quotas.enforce` has no effect here.", True
    )
    source: Literal["log_dirs", "topic"] = described(
        "Origin of the usage: brokers of Kafka 3.3 or later (`log_dirs`), or agents that write to `topic`. The agents' file has"
        " `soft` and `hard` then.",
        "log_dirs",
    )
    soft: LimitConfig = described(
        "Limit from which producers are delayed, the more the fuller the volume is.",
        LimitConfig(type="MinFreePercentage", level=15),
        absent="15 percent free",
    )
    hard: LimitConfig = described(
        "Limit from which producers are paused.", LimitConfig(type="MinFreePercentage", level=5), absent="5 percent free"
    )
    freshness_seconds: Annotated[float, Field(gt=0, le=86_400)] = described(
        "Age from which a broker's usage counts as unknown.", 300, unit="seconds"
    )
    when_unknown: Literal["PAUSE", "OPEN"] = described(
        "Effect of unknown usage: producers are paused, or not delayed.", "PAUSE"
    )
    topic: TopicName = described("Compacted topic with the agents' usage messages.", "__weir_volume_usage")
    publish_interval_ms: Annotated[int, Field(ge=100, le=86_400_000)] = described(
        "Time between two questions about the disks, or between two messages of an agent.", 30_000, unit="milliseconds"
    )
    max_delay_ms: Annotated[int, Field(ge=1, lt=_LEAST_CLIENT_TIMEOUT_MS)] = described(
        "Delay of a producer just before the hard limit.", 5_000, unit="milliseconds"
    )
    agent: AgentConfig = described("Settings of the agent, `weir volumes publish`.", AgentConfig(), changes="agent")

    @model_validator(mode="after")
    def _together(self) -> "VolumesConfig":
        if self.soft.type == self.hard.type:
            rises = self.soft.type == "ConsumedSpace"
            if self.soft.level > self.hard.level if rises else self.soft.level < self.hard.level:
                raise invalid(
                    f"soft ({self.soft.type} {self.soft.level:g}) is reached after hard ({self.hard.level:g})",
                    f"make soft.level {'at most' if rises else 'at least'} {self.hard.level:g}",
                )
        if self.publish_interval_ms / 1000 >= self.freshness_seconds:
            raise invalid(
                f"publish_interval_ms {self.publish_interval_ms} is no less than freshness_seconds {self.freshness_seconds:g}, "
                "so usage is stale before the next message",
                f"set freshness_seconds above {self.publish_interval_ms / 1000:g}, better three times as much",
            )
        return self
