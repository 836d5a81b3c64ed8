"""The view of a running gateway for metrics and the admin API."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway import clock
from gateway.config.effective import EffectiveConfig
from gateway.proxy.counters import Counters
from gateway.proxy.sessions import ConnectionFacts
from gateway.quotas.debts import ClearedDebt, DebtFilter
from gateway.quotas.entity import DynamicQuotas
from gateway.quotas.snapshot import ThrottleTotals, UsageRow
from gateway.steps import Steps
from gateway.time_slices import in_slices


class EngineView(Protocol):
    """The part of the quota engine that the admin port reads."""

    @property
    def overflowed(self) -> int:
        """The number of times that a client had to share a bucket, because of `quotas.max_entities`."""

    def small_quotas(self) -> dict[str, int]:
        """By kind: the number of entities with a quota so small that a mute may outlast a client's timeout."""

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        """A row for each bucket with its own name; the number of rows is bounded. `now` is monotonic, in seconds."""

    def active_rows(self, now: float, seconds: float) -> Steps[list[UsageRow]]:
        """The rows of buckets with a limit that were used in the last `seconds`, or were throttled lately."""

    def throttle_totals(self) -> list[ThrottleTotals]:
        """The throttle decisions of each kind."""


class ListedSession(Protocol):
    """The part of a session that the list of connections shows."""

    def facts(self, now: float) -> ConnectionFacts | None:
        """None: it has ended."""
        ...


class FeatureView(Protocol):
    """The part of a feature that the admin port reads; see `gateway.feature.Feature`."""

    @property
    def page(self) -> str: ...

    def report_in_steps(self) -> Steps[object | None]: ...

    def throttle_totals(self) -> Sequence[ThrottleTotals]: ...

    def as_json(self, report: Any) -> dict[str, Any]: ...  # noqa: ANN401 -- each feature has its own


@dataclass(frozen=True, slots=True)
class AdminView:
    """A running gateway. `not_ready` returns the reason if balancers should send no clients here, otherwise None.

    `brokers` returns the address of each broker by node id. `forgive` clears debts. `dynamic` returns the quotas of the quota
    API. `sessions` returns the open sessions.
    """

    engine: EngineView
    counters: Counters
    effective: EffectiveConfig
    not_ready: Callable[[], str | None]
    features: Sequence[FeatureView] = ()
    brokers: Callable[[], Mapping[int, tuple[str, int]]] = dict
    forgive: Callable[[DebtFilter], Sequence[ClearedDebt]] = lambda _: ()
    dynamic: Callable[[], DynamicQuotas] = dict
    sessions: Callable[[], Iterable[ListedSession]] = tuple
    monotonic: Callable[[], float] = clock.monotonic
    wall: Callable[[], float] = clock.wall

    async def rows(self) -> list[UsageRow]:
        """The engine's rows, read in slices."""
        return await in_slices(self.engine.rows(self.monotonic()))

    def reports(self) -> Steps[tuple[object, ...]]:
        """The reports of the features that are configured."""
        found: list[object] = []
        for feature in self.features:
            report = yield from feature.report_in_steps()
            if report is not None:
                found.append(report)
        return tuple(found)

    async def report_page(self, page: str) -> dict[str, Any] | None:
        """The report of a feature as its `as_json` shows it, made in slices; None if the feature is not configured."""
        for feature in self.features:
            if feature.page == page and (report := await in_slices(feature.report_in_steps())) is not None:
                return feature.as_json(report)
        return None
