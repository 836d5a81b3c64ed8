"""`quotas.volumes`: slow producers down before a volume of the cluster is full."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.section import Section, TopicName, invalid
from gateway.features.volume_quotas.limits import Limit, LimitType

_MAX_INT64 = 2**63 - 1
_PERCENT = 100
_MAX_PORT = 65_535

_LEAST_CLIENT_TIMEOUT_MS = 30_000
"""request.timeout.ms of the Java client, the shortest among the clients' defaults: a delay must be shorter."""


class LimitConfig(Section):
    """A limit of a volume: bytes in use, bytes to stay free, or percent (0 to 100) of the capacity to stay free."""

    type: Literal["ConsumedSpace", "MinFreeBytes", "MinFreePercentage"]
    level: Annotated[float, Field(ge=0, le=_MAX_INT64)]

    @model_validator(mode="after")
    def _percent(self) -> "LimitConfig":
        if self.type == "MinFreePercentage" and self.level > _PERCENT:
            raise invalid("keeps more than 100 percent free", "give level in percent, from 0 to 100")
        return self

    def limit(self) -> Limit:
        return Limit(LimitType(self.type), self.level)


class AgentConfig(Section):
    """`quotas.volumes.agent`: broker, paths and admin port of `weir volumes publish`; the host of the port is `admin.host`."""

    broker_id: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    paths: Annotated[tuple[str, ...], Field(strict=False)] = ()
    admin_port: Annotated[int, Field(ge=1, le=_MAX_PORT)] = 9645


class VolumesConfig(Section):
    """With `enforce: false` volumes are watched and shown, and no producer is delayed. `quotas.enforce` has no effect here."""

    enforce: bool = True
    source: Literal["log_dirs", "topic"] = "log_dirs"
    soft: LimitConfig = LimitConfig(type="MinFreePercentage", level=15)
    hard: LimitConfig = LimitConfig(type="MinFreePercentage", level=5)
    freshness_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300
    when_unknown: Literal["PAUSE", "OPEN"] = "PAUSE"
    topic: TopicName = "__weir_volume_usage"
    publish_interval_ms: Annotated[int, Field(ge=100, le=86_400_000)] = 30_000
    max_delay_ms: Annotated[int, Field(ge=1, lt=_LEAST_CLIENT_TIMEOUT_MS)] = 5_000
    agent: AgentConfig = AgentConfig()

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
