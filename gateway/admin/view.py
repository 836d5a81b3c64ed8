"""What metrics and the admin API see of a running gateway."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway import clock
from gateway.config.effective import EffectiveConfig
from gateway.features.connection_quotas.rules import ConnectionQuotas
from gateway.features.quota_api.records import QuotaLogReport
from gateway.features.sharing.report import SharingReport
from gateway.features.topic_quotas.rules import TopicsReport
from gateway.features.volume_quotas.report import VolumesReport
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


class AdmissionView(Protocol):
    """The part of letting connections in that is looked at."""

    quotas: ConnectionQuotas

    @property
    def held(self) -> int:
        """How many sockets of clients that were turned away wait to be closed."""


@dataclass(frozen=True, slots=True)
class AdminView:
    """A running gateway. `not_ready` gives the reason why clients should not be sent here, None once they should.

    `volumes`, `topics`, `sharing` and `quota_log` give how the volume usage quota, the topic quotas, the sharing of quotas and
    the topic with those of the API do, None where there are none; `brokers` where each broker listens;
    `ledger_topic_connected` whether lines of the ledger get into its topic, None where there is none. `forgive` clears debts.
    """

    engine: EngineView
    admission: AdmissionView
    counters: Counters
    effective: EffectiveConfig
    not_ready: Callable[[], str | None]
    volumes: Callable[[], VolumesReport | None] = lambda: None
    brokers: Callable[[], Mapping[int, tuple[str, int]]] = dict
    topics: Callable[[], TopicsReport | None] = lambda: None
    sharing: Callable[[], SharingReport | None] = lambda: None
    quota_log: Callable[[], QuotaLogReport | None] = lambda: None
    ledger_topic_connected: Callable[[], bool | None] = lambda: None
    forgive: Callable[[DebtFilter], Sequence[ClearedDebt]] = lambda _: ()
    monotonic: Callable[[], float] = clock.monotonic
    wall: Callable[[], float] = clock.wall
