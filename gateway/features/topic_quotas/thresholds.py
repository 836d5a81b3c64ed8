"""Thresholds of topics that are set as a config of the topic, `bytes.in.per.sec.threshold` (Kafka's "broker side quota").

They are kept among the quotas of the API, each as the quota of an entity of type `topic`, which AlterClientQuotas does not
know. Codes and texts are those of Kafka's topic configs where it has them.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from gateway.alterations import NONE, Alteration, AlterRules, AlterTask, Change, QuotaApiError
from gateway.quotas.entity import TOPIC, ClientQuotaEntity, DynamicQuotas
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, AlterResult, EntityPart, Op

KEY: Final = "bytes.in.per.sec.threshold"
TOTAL: Final = "total.bytes.in.per.sec.threshold"

INVALID_CONFIG: Final = 40

_MAX_INT64: Final = 2**63 - 1
_DIGITS: Final = 19
_SHOWN: Final = 100  # characters of a value, in an error


class TopicLimits(NamedTuple):
    """`quotas.topics` of the config file, in bytes per second."""

    total: float
    explicit: Mapping[str, float]


class Threshold(NamedTuple):
    """A topic's explicit threshold: the one that is set as its config, and the file's. None: there is none."""

    dynamic: float | None
    file: float | None

    @property
    def effective(self) -> float | None:
        """The one that holds."""
        return self.file if self.dynamic is None else self.dynamic


def parse(value: str | None) -> float:
    """A threshold as it stands in a request. Raises QuotaApiError."""
    text = (value or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and 0 < int(text) <= _MAX_INT64):
        raise QuotaApiError(
            INVALID_CONFIG,
            f"Invalid value {str(value)[:_SHOWN]} for configuration {KEY}: write bytes per second, from 1 to {_MAX_INT64}.",
        )
    return float(text)


def shown(threshold: float | None) -> str | None:
    """A threshold as it stands in an answer."""
    return None if threshold is None else f"{threshold:.0f}"


def alter_request(changes: Mapping[str, float | None], *, validate_only: bool) -> AlterRequest:
    """Set the thresholds of topics, or remove them (None)."""
    entries = tuple(AlterEntry(parts_of(topic), (Op(KEY, threshold),)) for topic, threshold in changes.items())
    return AlterRequest(entries, validate_only)


def parts_of(topic: str) -> tuple[EntityPart, ...]:
    """The entity of a topic."""
    return (EntityPart(TOPIC, topic),)


class AlterationQueue(Protocol):
    """Carries out alterations of the quotas that clients set, one after the other."""

    def allows(self, user: str) -> bool:
        """Return True if the user may alter quotas."""
        ...

    def alter(
        self, request: AlterRequest, user: str, done: Callable[[], None], *, rules: AlterRules | None = None
    ) -> AlterTask: ...

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None: ...


class TopicThresholds:
    """The explicit thresholds of a gateway: the file's, and above them those of topic configs (`dynamic`).

    It is the `ThresholdApi` of the request handlers, and the `AlterRules` of the alterations that it puts into `queue`.
    """

    def __init__(self, queue: AlterationQueue) -> None:
        self.of_file: TopicLimits | None = None
        self.dynamic: Mapping[str, float] = {}
        self._queue = queue

    @property
    def topics_limited(self) -> bool:
        """True if topics have quotas, so that clients may set their thresholds."""
        return self.of_file is not None

    def allows(self, user: str) -> bool:
        """Return True if the user may set thresholds."""
        return self._queue.allows(user)

    def threshold(self, topic: str) -> Threshold:
        """The explicit threshold of a topic."""
        return Threshold(self.dynamic.get(topic), None if self.of_file is None else self.of_file.explicit.get(topic))

    def alter_thresholds(
        self, changes: Mapping[str, float | None], user: str, done: Callable[[], None], *, validate_only: bool
    ) -> AlterTask:
        """Begin to set the thresholds of topics, or to remove them (None), for a user who has been checked."""
        return self._queue.alter(alter_request(changes, validate_only=validate_only), user, done, rules=self)

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None:
        """Take back the changes of a topic, as the broker has refused its part of them."""
        self._queue.undo(task, entity)

    def alteration(self, request: AlterRequest) -> Alteration:
        return alteration(request)

    def check(self, before: DynamicQuotas, after: DynamicQuotas) -> None:
        if self.of_file is not None:
            check_sum(self.of_file, before, after)


def alteration(request: AlterRequest) -> Alteration:
    """The changes that a request of `alter_request` asks for."""
    found = Alteration()
    for entry in request.entries:
        found.results[entry.entity] = AlterResult(NONE, None, entry.entity)
        for part in entry.entity:
            found.changes += [Change(ClientQuotaEntity(topic=part.name), op.key, op.value) for op in entry.ops]
    return found


def thresholds(quotas: DynamicQuotas) -> dict[str, float]:
    """The thresholds among the quotas of the API, by topic."""
    return {entity.topic: limits[KEY] for entity, limits in quotas.items() if isinstance(entity.topic, str) and KEY in limits}


def check_sum(limits: TopicLimits, before: DynamicQuotas, after: DynamicQuotas) -> None:
    """Raises QuotaApiError for a change that makes explicit thresholds add up to more than the total.

    Where they do so already, as the file has changed since, a change that does not add to them passes.
    """
    sums = [sum({**limits.explicit, **thresholds(quotas)}.values()) for quotas in (before, after)]
    if sums[1] > max(limits.total, sums[0]):
        raise QuotaApiError(
            INVALID_CONFIG,
            f"Explicit thresholds of topics would add up to {sums[1]:.0f}, {sums[1] - limits.total:.0f} more than {TOTAL} "
            f"{limits.total:.0f}: lower some of {KEY}, or raise the total in Weir's config file.",
        )
