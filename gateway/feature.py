"""The interface of a feature: `parts.py` builds the features. `app.py` knows four of them by name, and else this interface."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, TypeVar

from gateway.admin.metrics.row import Row
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.proxy.handler import HandlerFactory
from gateway.quotas.snapshot import ThrottleTotals
from gateway.steps import Steps

SectionT = TypeVar("SectionT")


class Feature(Generic[SectionT]):
    """One feature of the gateway, configured by a section of the config. A feature overrides the methods that it needs.

    It is a base class and no Protocol, because most features need only half of the methods. It has `start` in place of a `run`
    coroutine, because a feature may have several background tasks or none. A reload may start or end them.
    """

    page: ClassVar[str] = ""
    """The report's name: `/api/PAGE` of the admin API, and a key of the live page. Empty: the report is for metrics alone."""

    metrics: ClassVar[tuple[Row, ...]] = ()

    _task: BackgroundTask | None = None
    """The background task of a feature with one task. `stop` cancels it."""

    def handlers(self) -> Mapping[int, HandlerFactory]:
        """The factories of request handlers, by API key."""
        return {}

    async def restore(self) -> None:
        """Load the state of an earlier process. No client is served before all features have done so. Raises ConfigError."""

    def start(self, tasks: BackgroundTasks) -> None:
        """Start the background tasks. The ports for clients are already bound."""

    def prepare(self, section: SectionT) -> None:
        """Compute what `apply` will need, and change nothing. A thread calls it, so that the event loop serves clients."""

    def apply(self, section: SectionT) -> list[str]:  # noqa: ARG002
        """Apply this feature's section of a reloaded config; it may be unchanged. Return notes for the operator."""
        return []

    def tick(self, now: float) -> Steps[None]:  # noqa: ARG002
        """The work of each second; `now` is monotonic. The event loop serves clients between the steps."""
        yield from ()

    def not_ready(self) -> str | None:
        """The reason why `/readyz` reports this gateway as not ready. None: the feature is ready."""
        return None

    def report(self) -> object | None:
        """The present state for metrics, and for the admin API where there is a `page`. None: nothing is configured."""
        return None

    def report_in_steps(self) -> Steps[object | None]:
        """As `report`. A feature with thousands of rows overrides it, so that clients are served in between."""
        yield
        return self.report()

    def throttle_totals(self) -> Sequence[ThrottleTotals]:
        """The throttle times that no quota of the engine has caused."""
        return ()

    def as_json(self, report: Any) -> dict[str, Any]:  # noqa: ANN401 -- each feature has its own
        """A report as the admin API shows it. A value may also be a dataclass, or a list of them."""
        return {each.name: getattr(report, each.name) for each in fields(report)}

    async def stop(self) -> None:
        """Save or publish the last state, and cancel the background tasks. All clients' connections are already closed."""
        if self._task is not None:
            self._task.cancel()
