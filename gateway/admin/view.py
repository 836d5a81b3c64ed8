"""What metrics and the admin API see of a running gateway."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway import clock
from gateway.config.effective import EffectiveConfig
from gateway.proxy.counters import Counters
from gateway.quotas.debts import ClearedDebt, DebtFilter
from gateway.quotas.snapshot import ThrottleTotals, UsageRow


class EngineView(Protocol):
    """The part of the quota engine that is looked at."""

    @property
    def overflowed(self) -> int:
        """How often a client had to share a bucket because there are too many."""

    def small_quotas(self) -> dict[str, int]:
        """How many entities of each kind have a quota so small that a mute may outlast a client's session."""

    def snapshot(self, now: float) -> list[UsageRow]:
        """A row for each bucket that is shown by name; the number of rows is bounded. `now` is monotonic, in seconds."""

    def throttle_totals(self) -> list[ThrottleTotals]:
        """The throttle decisions of each kind."""


class FeatureView(Protocol):
    """The part of a feature that is looked at; see `gateway.feature.Feature`."""

    @property
    def page(self) -> str: ...

    def report(self) -> object | None: ...

    def throttle_totals(self) -> Sequence[ThrottleTotals]: ...

    def as_json(self) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class AdminView:
    """A running gateway. `not_ready` gives the reason why clients should not be sent here, None once they should.

    `brokers` gives the address of each broker by node id. `forgive` clears debts.
    """

    engine: EngineView
    counters: Counters
    effective: EffectiveConfig
    not_ready: Callable[[], str | None]
    features: Sequence[FeatureView] = ()
    brokers: Callable[[], Mapping[int, tuple[str, int]]] = dict
    forgive: Callable[[DebtFilter], Sequence[ClearedDebt]] = lambda _: ()
    monotonic: Callable[[], float] = clock.monotonic
    wall: Callable[[], float] = clock.wall

    def report_on(self, page: str) -> dict[str, Any] | None:
        """The report of a feature as JSON values; None if the feature is not configured."""
        return next((feature.as_json() for feature in self.features if feature.page == page), None)
