"""The interface of a feature: `parts.py` builds the features, and `app.py` calls nothing else of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from gateway.admin.metrics.row import Row
from gateway.background import BackgroundTasks
from gateway.proxy.handler import HandlerFactory
from gateway.quotas.snapshot import ThrottleTotals

SectionT = TypeVar("SectionT")


class Feature(Generic[SectionT]):
    """One feature of the gateway, configured by a section of the config. A feature overrides the methods that it needs.

    It is a base class and no Protocol, as most features need only half of the methods. `start` takes the place of a `run`
    coroutine: a feature may have several background tasks or none, and a reload may start or end them.
    """

    page: ClassVar[str] = ""
    """The report's name: `/api/PAGE` of the admin API, and a key of the live page. Empty: the report is for metrics alone."""

    metrics: ClassVar[tuple[Row, ...]] = ()

    def handlers(self) -> Mapping[int, HandlerFactory]:
        """The factories of request handlers, by API key."""
        return {}

    async def restore(self) -> None:
        """Load the state that an earlier process has saved, before any client is served. Raises ConfigError."""

    def start(self, tasks: BackgroundTasks) -> None:
        """Start the background tasks. The clients' ports are bound by then."""

    def apply(self, section: SectionT) -> list[str]:  # noqa: ARG002
        """Put the section of a reloaded config into effect, which may be the same as before. Return notes for the operator."""
        return []

    def tick(self, now: float) -> None:
        """Called once a second; `now` is monotonic."""

    def not_ready(self) -> str | None:
        """The reason why clients should not be sent here yet."""
        return None

    def report(self) -> object | None:
        """The present state for metrics, and for the admin API where there is a `page`. None: nothing is configured."""
        return None

    def throttle_totals(self) -> Sequence[ThrottleTotals]:
        """The throttle times of delays that are not due to a quota of the engine."""
        return ()

    def as_json(self) -> dict[str, Any] | None:
        """The report as the admin API shows it."""
        report = self.report()
        return asdict(report) if is_dataclass(report) and not isinstance(report, type) else None

    async def stop(self) -> None:
        """Save or send the last state and cancel the background tasks. No client is served any more."""
