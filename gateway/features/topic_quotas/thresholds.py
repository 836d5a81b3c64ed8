"""Topic thresholds that clients set as the topic config `bytes.in.per.sec.threshold` (Kafka's "broker side quota").

The store of the quota API keeps each threshold as the quota of an entity of type `topic`. AlterClientQuotas does not know this
type. Error codes and texts follow Kafka's topic configs.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gateway.alter_queue import AlterQueue, AlterTask
from gateway.alterations import Alteration, Change, QuotaApiError
from gateway.quotas.entity import TOPIC, ClientQuotaEntity, DynamicQuotas
from gateway.whole_number import MAX_INT64
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, AlterResult, EntityPart, Op
from protocol.error_codes import ErrorCode

KEY: Final = "bytes.in.per.sec.threshold"
TOTAL: Final = "total.bytes.in.per.sec.threshold"

_DIGITS: Final = 19
_SHOWN: Final = 100  # characters of a value, in an error


class TopicLimits(NamedTuple):
    """`quotas.topics` of the config file, in bytes per second."""

    total: float
    explicit: Mapping[str, float]


class Threshold(NamedTuple):
    """The explicit thresholds of a topic, from the topic's config (`dynamic`) and from Weir's config file. None: not set."""

    dynamic: float | None
    file: float | None

    @property
    def effective(self) -> float | None:
        return self.file if self.dynamic is None else self.dynamic


def parse(value: str | None) -> float:
    """Read a threshold from a request. Raises QuotaApiError."""
    text = (value or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and 0 < int(text) <= MAX_INT64):
        raise QuotaApiError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {str(value)[:_SHOWN]} for configuration {KEY}: write bytes per second, from 1 to {MAX_INT64}.",
        )
    return float(text)


def shown(threshold: float | None) -> str | None:
    return None if threshold is None else f"{threshold:.0f}"


def alter_request(changes: Mapping[str, float | None], *, validate_only: bool) -> AlterRequest:
    """The request that sets the thresholds of topics, or removes them (None)."""
    entries = tuple(AlterEntry(parts_of(topic), (Op(KEY, threshold),)) for topic, threshold in changes.items())
    return AlterRequest(entries, validate_only)


def parts_of(topic: str) -> tuple[EntityPart, ...]:
    return (EntityPart(TOPIC, topic),)


class TopicThresholds:
    """The explicit thresholds of a gateway. Topic configs (`dynamic`) override the config file.

    The class has the `AlterRules` of its alterations in `queue`.
    """

    def __init__(self, queue: AlterQueue) -> None:
        self.of_file: TopicLimits | None = None
        self.dynamic: Mapping[str, float] = {}
        self.queue = queue

    @property
    def topics_limited(self) -> bool:
        """True if topics have quotas. Otherwise clients can't set thresholds."""
        return self.of_file is not None

    def threshold(self, topic: str) -> Threshold:
        return Threshold(self.dynamic.get(topic), None if self.of_file is None else self.of_file.explicit.get(topic))

    def alter_thresholds(
        self, changes: Mapping[str, float | None], user: str, done: Callable[[], None], *, validate_only: bool
    ) -> AlterTask:
        """Start to set the thresholds of topics, or to remove them (None). The caller has checked the user's rights."""
        return self.queue.alter(alter_request(changes, validate_only=validate_only), user, done, rules=self)

    @staticmethod
    def alteration(request: AlterRequest) -> Alteration:
        """The changes in a request that `alter_request` made."""
        found = Alteration()
        for entry in request.entries:
            found.results[entry.entity] = AlterResult(ErrorCode.NONE, None, entry.entity)
            for part in entry.entity:
                found.changes += [Change(ClientQuotaEntity(topic=part.name), op.key, op.value) for op in entry.ops]
        return found

    def check(self, before: DynamicQuotas, after: DynamicQuotas) -> None:
        if self.of_file is not None:
            check_sum(self.of_file, before, after)


def thresholds(quotas: DynamicQuotas) -> dict[str, float]:
    """The thresholds in the quotas of the API, by topic."""
    return {entity.topic: limits[KEY] for entity, limits in quotas.items() if isinstance(entity.topic, str) and KEY in limits}


def check_sum(limits: TopicLimits, before: DynamicQuotas, after: DynamicQuotas) -> None:
    """Raises QuotaApiError if the explicit thresholds after a change add up to more than the total.

    They may do so already, after a change of the file. Then a change that does not increase the sum passes.
    """
    sums = [sum({**limits.explicit, **thresholds(quotas)}.values()) for quotas in (before, after)]
    if sums[1] > max(limits.total, sums[0]):
        raise QuotaApiError(
            ErrorCode.INVALID_CONFIG,
            f"Explicit thresholds of topics would add up to {sums[1]:.0f}, {sums[1] - limits.total:.0f} more than {TOTAL} "
            f"{limits.total:.0f}. Lower some of {KEY}, or raise the total in Weir's config file.",
        )
