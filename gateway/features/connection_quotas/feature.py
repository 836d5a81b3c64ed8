"""Connects the limits on connections to sockets, timers and reloads of the config."""

from heapq import nlargest
from typing import Final

from gateway import clock
from gateway.feature import Feature
from gateway.features.connection_quotas.admission import ConnectionAdmission
from gateway.features.connection_quotas.metrics import METRICS, ConnectionsReport
from gateway.features.connection_quotas.rules import ConnectionLimits, ConnectionQuotas
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import Tags, short_name

MAX_USERS: Final = 1_000
"""The users that metrics show."""


class ConnectionQuotasFeature(Feature[ConnectionLimits]):
    """All acceptors of the gateway share `admission`."""

    metrics = METRICS

    def __init__(self, section: ConnectionLimits, engine: QuotaEngine, outlet: Outlet) -> None:
        self.quotas = ConnectionQuotas(engine, section, clock.monotonic())
        self.admission = ConnectionAdmission(self.quotas, outlet)

    def apply(self, section: ConnectionLimits) -> list[str]:
        """Apply an unchanged section too, because the algorithm and the window of the engine may have changed."""
        self.quotas.apply(section, clock.monotonic())
        self.admission.follow_limits()
        return []

    def report(self) -> ConnectionsReport:
        users = nlargest(MAX_USERS, self.quotas.users.limited(), key=lambda user: user[1])
        shown = [(Tags(short_name(name), None).shown[0], count, most) for name, count, most in users]
        return ConnectionsReport(self.quotas.listeners, self.quotas.gateway, self.admission.held, shown)
