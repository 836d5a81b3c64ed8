"""`quotas.topics`: thresholds on the bytes appended per topic and in total. The keys come from Kafka's proposal."""

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from gateway.config.section import Section, TopicName, WindowConfig, described, invalid
from gateway.features.topic_quotas.thresholds import KEY as EXPLICIT
from gateway.features.topic_quotas.thresholds import TOTAL
from gateway.whole_number import MAX_INT64
from protocol.error_codes import ErrorCode

_SHOWN = 5


def _retriable(code: int) -> int:
    if code not in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        raise invalid(
            "is not an error after which producers send the batch again",
            f"write {ErrorCode.NOT_ENOUGH_REPLICAS} (NOT_ENOUGH_REPLICAS), after which all clients retry, or "
            f"{ErrorCode.THROTTLING_QUOTA_EXCEEDED} (THROTTLING_QUOTA_EXCEEDED), after which the Java client retries",
        )
    return code


class TopicsConfig(Section):
    """`quotas.topics`: thresholds on the bytes of record batches that enter topics."""

    total: Annotated[int, Field(gt=0, le=MAX_INT64)] = described(
        "Bytes that all topics together may append, over all brokers, or over one with `scope: broker`.",
        alias=TOTAL,
        unit="bytes per second",
    )
    explicit: dict[TopicName, Annotated[int, Field(gt=0, le=MAX_INT64)]] = described(
        "Thresholds of single topics, by name. The other topics share the rest of the total evenly.",
        {},
        alias=EXPLICIT,
        unit="bytes per second",
    )
    meter: Literal["one_minute", "window"] = described(
        "Rate that counts: of the last minute, as in Kafka's BytesInPerSec, or over `quotas.window`.", "one_minute"
    )
    error_code: Annotated[int, AfterValidator(_retriable)] = described(
        "Kafka's error code for rejected partitions: 19 (NOT_ENOUGH_REPLICAS) or 89 (THROTTLING_QUOTA_EXCEEDED).",
        ErrorCode.NOT_ENOUGH_REPLICAS.value,
    )

    @model_validator(mode="after")
    def _sum(self) -> "TopicsConfig":
        total = sum(self.explicit.values())
        if total > self.total:
            largest = sorted(self.explicit.items(), key=lambda item: -item[1])
            names = " + ".join(f"{name} {threshold}" for name, threshold in largest[:_SHOWN])
            names += f" + {len(largest) - _SHOWN} more" if len(largest) > _SHOWN else ""
            raise invalid(
                f"has explicit thresholds that add up to {total}, {total - self.total} more than {TOTAL} {self.total}: {names}",
                f"lower some of {EXPLICIT}, or raise {TOTAL} to at least {total}",
            )
        return self


class TopicsSection(NamedTuple):
    """The parts of `quotas` that topic quotas depend on. `topics` is None if topics have no quotas."""

    topics: TopicsConfig | None
    window: WindowConfig
    enforce: bool
    by_broker: bool = False
