"""Kafka's connection quotas (KIP-402, KIP-612), without threads.

Source: `ConnectionQuotas` in `SocketServer.scala`. Three rules differ from Kafka:

- Weir checks the address first. Kafka's acceptor first waits for the listener's rate, so one address can delay all others.
- The connection that exceeds a listener's rate is served, and the next connection waits in the kernel.
- The limits of the whole gateway apply to all listeners, because no broker connects through Weir.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Final

from gateway.quotas.engine import Metering, QuotaEngine
from gateway.quotas.entity import Tags
from gateway.quotas.kinds.connection import KIND as CONNECTIONS
from gateway.quotas.meter import Meter, Window
from gateway.quotas.rate import SampledRate
from gateway.quotas.recent_use import RecentUse, recent_use, restore_meter
from gateway.quotas.shared_meter import SharedMeter, UsageAccount, UsageKey, as_shared

KIND: Final = CONNECTIONS.name

LISTENER: Final = "listener"
GATEWAY: Final = "gateway"
"""The kinds of accounts that gateways share: the rate of one listener, and the rate of all listeners."""


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """Limits of a listener or of the whole gateway: open connections, and new connections per second. None: no limit."""

    max_connections: int | None = None
    connection_creation_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """All limits on connections, except the rates of addresses, which the engine has. `listeners` names every listener."""

    max_per_ip: int
    max_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    gateway: AcceptLimits = field(default_factory=AcceptLimits)
    listeners: Mapping[str, AcceptLimits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The caller closes the connection after `delay` seconds. A delay keeps the client from reconnecting at once.

    `reason` is a value of the label `reason` of `weir_connections_rejected_total`.
    """

    reason: str
    delay: float = 0.0


class ListenerQuota:
    """The connections of one listener, or of the whole gateway, and the time when it may accept the next one.

    It is a `UsageAccount`. `accepted_total` counts connections while there is a rate; `recent_rate` has those of the window.
    """

    __slots__ = (
        "accepted_total",
        "connections",
        "limits",
        "meter",
        "open_at",
        "recent_rate",
        "shared_total",
        "throttle_seconds_total",
        "window",
    )

    def __init__(self, window: Window) -> None:
        self.meter: Meter | None = None
        self.shared_total = 0
        self.window = window
        self.recent_rate = SampledRate(window)
        self.accepted_total = 0
        self.limits = AcceptLimits()
        self.connections = 0
        self.open_at = 0.0
        self.throttle_seconds_total = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the listener may accept a connection; inf: until a connection is closed."""
        if self.limits.max_connections is not None and self.connections >= self.limits.max_connections:
            return inf
        return max(0.0, self.open_at - now)

    def record(self, now: float, longest: float, *, enforce: bool) -> float:
        """Count an accepted connection. Returns the seconds that the next connection has to wait."""
        if self.meter is None:
            self.open_at = now
            return 0.0
        self.accepted_total += 1
        self.recent_rate.record(1, now)
        delay = min(self.meter.charge(1, now), longest)
        if delay > 0.0 and not enforce:
            self.meter.forgive(now)
            return 0.0
        self.open_at = now + delay
        return delay

    def total(self) -> int:
        return self.accepted_total

    def recent(self, now: float) -> int:
        return round(self.recent_rate.kept(now))

    def capacity(self) -> float:
        return 0.0 if self.meter is None else self.meter.capacity

    def shared_meter(self) -> SharedMeter | None:
        return as_shared(self.meter)

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        meter = as_shared(self.meter)
        if meter is not None:
            meter.charge_others(amount, now, no_debt=no_debt)


class ConnectionSlot:
    """One connection that is counted until it is released."""

    __slots__ = ("_listener", "_open", "_quotas", "ip")

    def __init__(self, quotas: "ConnectionQuotas", listener: str, ip: str) -> None:
        self._quotas = quotas
        self._listener = listener
        self._open = True
        self.ip = ip

    def release(self) -> None:
        """The connection is closed. Only the first call has an effect."""
        if self._open:
            self._open = False
            self._quotas.release(self._listener, self.ip)


class ConnectionQuotas:
    """Counts connections by address and listener, and in the whole `gateway`. Times are monotonic seconds."""

    kinds: ClassVar[frozenset[str]] = frozenset((LISTENER, GATEWAY))

    def __init__(self, engine: QuotaEngine, limits: ConnectionLimits, now: float) -> None:
        self._engine = engine
        self._limits = limits
        self._metering = engine.settings.metering_of(CONNECTIONS)
        self.gateway = ListenerQuota(self._metering.window)
        self.listeners: dict[str, ListenerQuota] = {}
        self._per_ip: dict[str, int] = {}
        self._on_release: list[Callable[[], None]] = []
        self.apply(limits, now)

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call back after a connection was closed or the limits have changed, because there may be room for another one."""
        self._on_release.append(callback)

    def apply(self, limits: ConnectionLimits, now: float) -> None:
        """Change the limits, and follow the engine's algorithm and window. Open connections stay open."""
        before, self._metering = self._metering, self._engine.settings.metering_of(CONNECTIONS)
        self._limits = limits
        self._set(self.gateway, limits.gateway, before, now)
        for name, its_limits in limits.listeners.items():
            quota = self.listeners.setdefault(name, ListenerQuota(self._metering.window))
            self._set(quota, its_limits, before, now)
        for callback in self._on_release:
            callback()

    def wait(self, listener: str, now: float) -> float:
        """Seconds until the listener may accept a connection; inf: until a connection is closed."""
        return max(self.gateway.wait(now), self.listeners[listener].wait(now))

    def accept(self, listener: str, ip: str, now: float) -> ConnectionSlot | Refusal:
        """Count a connection that a listener has accepted, or refuse the connection. The listener must not have to `wait`.

        A delay is at most one sample of the quota window, as in Kafka.
        """
        at_once = self._per_ip.get(ip, 0)
        if at_once >= self.max_per_ip(ip):
            return Refusal("max_per_ip")
        enforce, longest = self._engine.settings.enforce, self._metering.window.seconds
        bucket = self._engine.acquire_ip(KIND, ip, now)
        if bucket is not None:
            delay, enforced = bucket.enter(longest, now)
            self._engine.release(bucket, now)
            if enforced:
                return Refusal("connection_creation_rate", delay)
        quota = self.listeners[listener]
        quota.throttle_seconds_total += max(
            self.gateway.record(now, longest, enforce=enforce), quota.record(now, longest, enforce=enforce)
        )
        self._per_ip[ip] = at_once + 1
        quota.connections += 1
        self.gateway.connections += 1
        return ConnectionSlot(self, listener, ip)

    def release(self, listener: str, ip: str) -> None:
        """Count that a connection is closed. Raises ValueError if the address has no open connection."""
        left = self._per_ip.get(ip, 0) - 1
        if left < 0:
            raise ValueError(f"no connection of {ip} is open")
        if left:
            self._per_ip[ip] = left
        else:
            del self._per_ip[ip]
        self.listeners[listener].connections -= 1
        self.gateway.connections -= 1
        for callback in self._on_release:
            callback()

    def recent_uses(self, now: float) -> dict[str | None, RecentUse]:
        """The recent use by listener; None stands for the whole gateway."""
        quotas: list[tuple[str | None, ListenerQuota]] = [(None, self.gateway), *self.listeners.items()]
        found = {
            name: recent_use(KIND, quota.meter, quota.limits.connection_creation_rate, self._engine, now)
            for name, quota in quotas
        }
        return {name: use for name, use in found.items() if use is not None}

    def restore(self, listener: str | None, use: RecentUse, now: float) -> None:
        """Restore the use of a listener, or of the gateway (None). Does nothing if the rate has no limit any more."""
        quota = self.gateway if listener is None else self.listeners.get(listener)
        if quota is None or quota.meter is None or quota.limits.connection_creation_rate is None:
            return
        restore_meter(quota.meter, KIND, quota.limits.connection_creation_rate, use, self._engine, now)
        if self._engine.settings.enforce:
            quota.open_at = now + min(quota.meter.delay(now), self._metering.window.seconds)

    def max_per_ip(self, ip: str) -> int:
        return self._limits.max_per_ip_overrides.get(ip, self._limits.max_per_ip)

    def count(self, ip: str) -> int:
        """The open connections of an address."""
        return self._per_ip.get(ip, 0)

    # A `SharedUsage` for sharing: gateways share the rate of listeners with one name.

    def accounts(self) -> list[tuple[UsageKey, UsageAccount]]:
        """The listeners and the gateway, if they have rates."""
        everyone: list[tuple[UsageKey, ListenerQuota]] = [((GATEWAY, ""), self.gateway)]
        everyone += [((LISTENER, name), quota) for name, quota in self.listeners.items()]
        return [(key, quota) for key, quota in everyone if quota.meter is not None]

    def changed(self) -> list[tuple[UsageKey, UsageAccount]]:
        """The accounts with connections that this gateway has not published yet."""
        return [(key, quota) for key, quota in self.accounts() if quota.total() != quota.shared_total]

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:  # noqa: ARG002
        """The account of the listener with this name; None if it has no rate here."""
        quota = self.gateway if kind == GATEWAY else self.listeners.get(name) if isinstance(name, str) else None
        return quota if quota is not None and quota.meter is not None else None

    def _set(self, quota: ListenerQuota, limits: AcceptLimits, before: Metering, now: float) -> None:
        quota.limits = limits
        if quota.window != self._metering.window:
            quota.window = self._metering.window
            recent_rate = SampledRate(quota.window)
            recent_rate.restore(quota.recent_rate.dump(now), now)
            quota.recent_rate = recent_rate
        rate = limits.connection_creation_rate
        quota.meter = None if rate is None else self._engine.changed_meter(KIND, quota.meter, rate, before, now)
