"""Kafka's connection quotas (KIP-402, KIP-612), without threads.

Source: `ConnectionQuotas` in `SocketServer.scala`. Three rules differ from Kafka:

- Weir checks the address first. Kafka's acceptor first waits for the listener's rate, so one address can delay all others.
- The connection that exceeds a listener's rate is served, and the next connection waits in the kernel.
- The limits of the whole gateway apply to all listeners, because no broker connects through Weir.

Kafka has no limits of connections by user. Weir checks them after authentication. Maximum numbers hold for all gateways that
share quotas: `peers` has the connections that are open at the others.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Final

from gateway.features.connection_quotas.per_user import ADMITTED, USER, CountKey, UserConnections, UserVerdict, part_of
from gateway.quotas.debts import forgive_all
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import BOOTSTRAP, Tags, short_name
from gateway.quotas.kinds.connection import KIND as CONNECTIONS
from gateway.quotas.meter import Meter, Window
from gateway.quotas.rate import SampledRate
from gateway.quotas.recent_use import RecentUse, recent_use, restore_meter
from gateway.quotas.settings import Metering
from gateway.quotas.shared_meter import SharedMeter, UsageAccount, UsageKey, as_shared

KIND: Final = CONNECTIONS.name

LISTENER: Final = "listener"
GATEWAY: Final = "gateway"
"""The kinds of accounts that gateways share: the rate of one listener, and the rate of all listeners."""

IP: Final = "ip"

PAID_CONNECTIONS: Final = 2.0
"""See `ListenerQuota.longest`."""


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
        "parts",
        "peers",
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
        self.peers = 0  # connections that are open at other gateways
        self.parts = 1  # this gateway has one part of so many of the maximum
        self.open_at = 0.0
        self.throttle_seconds_total = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the listener may accept a connection; inf: until a connection is closed."""
        most = self.limits.max_connections
        if most is not None and self.connections + self.peers >= part_of(most, self.parts):
            return inf
        return max(0.0, self.open_at - now)

    @property
    def used_ratio(self) -> float | None:
        """The used part of the maximum number of connections; None without a maximum."""
        most = self.limits.max_connections
        return None if most is None else (self.connections + self.peers) / part_of(most, self.parts)

    @property
    def longest(self) -> float:
        """The longest delay in seconds: one sample, as in Kafka.

        M gateways could then accept M connections in a sample. So with peers, the delay may be the time in which this
        gateway's part of the rate pays for `PAID_CONNECTIONS`. In a long debt, each gateway accepts at half of its part.
        """
        meter, seconds = as_shared(self.meter), self.window.seconds
        return seconds if meter is None else max(seconds, PAID_CONNECTIONS / (meter.limit * meter.share))

    def record(self, now: float, *, enforce: bool) -> float:
        """Count an accepted connection. Returns the seconds that the next connection has to wait."""
        if self.meter is None:
            self.open_at = now
            return 0.0
        self.accepted_total += 1
        self.recent_rate.record(1, now)
        delay = min(self.meter.charge(1, now), self.longest)
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

    __slots__ = ("_broker", "_open", "_quotas", "_refused", "_user", "ip", "listener")

    def __init__(self, quotas: "ConnectionQuotas", listener: str, ip: str, broker: int) -> None:
        self._quotas = quotas
        self._broker = broker
        self._open = True
        self._refused = False
        self._user = ""
        self.listener = listener
        self.ip = ip

    def identify(self, user: str, now: float) -> UserVerdict:
        """Count the connection for its user. A client that authenticates again as the same user is not counted again."""
        if user == self._user or not self._open:
            return ADMITTED
        self._leave()
        verdict = self._quotas.users.accept(user, now, self._broker)
        self._refused = verdict.refused
        if self._refused:
            self._quotas.report_refusal(self, user, verdict.refusal)
        else:
            self._user = user
        return verdict

    def release(self) -> None:
        """The connection is closed. Only the first call has an effect."""
        if self._open:
            self._open = False
            self._leave()
            self._quotas.release(self.listener, self.ip)

    def _leave(self) -> None:
        users = self._quotas.users
        if self._refused:
            users.refused -= 1
        elif self._user:
            users.release(self._user)
        self._refused, self._user = False, ""


class ConnectionQuotas:
    """Counts connections by address and listener, and in the whole `gateway`. Times are monotonic seconds."""

    kinds: ClassVar[frozenset[str]] = frozenset((LISTENER, GATEWAY))

    def __init__(self, engine: QuotaEngine, limits: ConnectionLimits, now: float) -> None:
        self._engine = engine
        self._limits = limits
        self._metering = engine.settings.metering_of(CONNECTIONS)
        self._enforced = engine.settings.enforce
        self.gateway = ListenerQuota(self._metering.window)
        self.listeners: dict[str, ListenerQuota] = {}
        self._per_ip: dict[str, int] = {}
        self.users = UserConnections(engine)
        self._on_refusal: list[Callable[[ConnectionSlot, str, str], None]] = []
        self._on_release: list[Callable[[], None]] = []
        self.apply(limits, now)

    def on_refusal(self, callback: Callable[[ConnectionSlot, str, str], None]) -> None:
        """Call back with each connection of a user that is refused: its slot, the user, and the reason."""
        self._on_refusal.append(callback)

    def report_refusal(self, slot: ConnectionSlot, user: str, reason: str) -> None:
        for callback in self._on_refusal:
            callback(slot, user, reason)

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call back after a connection was closed or the limits have changed, because there may be room for another one."""
        self._on_release.append(callback)

    def apply(self, limits: ConnectionLimits, now: float) -> None:
        """Change the limits, and follow the engine's settings. Open connections stay open."""
        before, self._metering = self._metering, self._engine.settings.metering_of(CONNECTIONS)
        self._limits = limits
        self._set(self.gateway, limits.gateway, before, now)
        for name, its_limits in limits.listeners.items():
            quota = self.listeners.setdefault(name, ListenerQuota(self._metering.window))
            self._set(quota, its_limits, before, now)
        self._set_enforced(self._engine.settings.enforce, now)
        for callback in self._on_release:
            callback()

    def wait(self, listener: str, now: float) -> float:
        """Seconds until the listener may accept a connection; inf: until a connection is closed."""
        return max(self.gateway.wait(now), self.listeners[listener].wait(now))

    def accept(
        self, listener: str, ip: str, now: float, *, broker: int = BOOTSTRAP, limit_address: bool = True
    ) -> ConnectionSlot | Refusal:
        """Count a connection that a listener has accepted, or refuse the connection. The listener must not have to `wait`.

        With `scope: broker`, the rate of the address is that of one `broker`.

        An address waits for at most one sample of the quota window, as in Kafka. A balancer's own connections and those of
        clients without an address come without `limit_address`.
        """
        if limit_address and (refusal := self._charge_address(ip, now, broker)) is not None:
            return refusal
        enforce = self._engine.settings.enforce
        quota = self.listeners[listener]
        quota.throttle_seconds_total += max(self.gateway.record(now, enforce=enforce), quota.record(now, enforce=enforce))
        self._per_ip[ip] = self.count(ip) + 1
        quota.connections += 1
        self.gateway.connections += 1
        return ConnectionSlot(self, listener, ip, broker)

    def _charge_address(self, ip: str, now: float, broker: int) -> Refusal | None:
        longest = self._metering.window.seconds
        bucket = self._engine.acquire_ip(KIND, ip, now, broker)
        if bucket is not None:
            delay, enforced = bucket.charge_connection(longest, now)
            self._engine.release(bucket, now)
            if enforced:
                return Refusal("connection_creation_rate", delay)
        shadows = self._engine.shadows
        if shadows is not None and (shadow := shadows.acquire_ip(KIND, ip, now, broker)) is not None:
            shadow.charge_connection(longest, now)
            shadows.release(shadow, now)
        # As in Kafka, such a connection has used its address's rate, so the rate bounds a client that connects again and again.
        if self.count(ip) + self.users.peers.get((IP, ip), 0) >= part_of(self.max_per_ip(ip), self.users.parts):
            return Refusal("max_per_ip")
        return None

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
        found = {name: recent_use(KIND, quota.meter, self._engine, now) for name, quota in quotas}
        return {name: use for name, use in found.items() if use is not None}

    def restore(self, listener: str | None, use: RecentUse, now: float) -> None:
        """Restore the use of a listener, or of the gateway (None). Does nothing if the rate has no limit any more."""
        quota = self.gateway if listener is None else self.listeners.get(listener)
        if quota is None or quota.meter is None:
            return
        restore_meter(quota.meter, KIND, use, self._engine, now)
        if self._engine.settings.enforce:
            quota.open_at = now + min(quota.meter.delay(now), quota.longest)

    def max_per_ip(self, ip: str) -> int:
        return self._limits.max_per_ip_overrides.get(ip, self._limits.max_per_ip)

    def count(self, ip: str) -> int:
        """The open connections of an address."""
        return self._per_ip.get(ip, 0)

    # The `SharedCounts` for sharing: gateways share maximum numbers of connections.

    def open_counts(self, members: int, known: Container[CountKey]) -> Iterator[tuple[CountKey, int, int]]:
        """The counts that peers have to know: the key, the open connections of this gateway, and the maximum."""
        for key, quota in self._counted():
            most = quota.limits.max_connections
            if most is not None and quota.connections:
                yield key, quota.connections, most
        for name, count, most in self.users.limited():
            key = (USER, short_name(name))
            if 2 * members * count >= most or key in known:
                yield key, count, most
        for ip, count in self._per_ip.items():
            most = self.max_per_ip(ip)
            if 2 * members * count >= most or (IP, ip) in known:
                yield (IP, ip), count, most

    def heed_peers(self, peers: Mapping[CountKey, int], parts: int) -> None:
        """Count the open connections of peers as well. This gateway may have one part of `parts` of each maximum."""
        self.users.peers, self.users.parts = peers, parts
        for key, quota in self._counted():
            quota.peers, quota.parts = peers.get(key, 0), parts
        for callback in self._on_release:
            callback()

    def _counted(self) -> Iterator[tuple[CountKey, ListenerQuota]]:
        yield (GATEWAY, ""), self.gateway
        for name, quota in self.listeners.items():
            yield (LISTENER, name), quota

    # A `SharedUsage` for sharing: gateways share the rate of listeners with one name.

    @property
    def memory(self) -> float:
        return self._metering.window.length

    def accounts(self) -> list[tuple[UsageKey, UsageAccount]]:
        """The listeners and the gateway, if they have rates."""
        return [(key, quota) for key, quota in self._counted() if quota.meter is not None]

    def changed(self) -> list[tuple[UsageKey, UsageAccount]]:
        """The accounts with connections that this gateway has not published yet."""
        return [(key, quota) for key, quota in self.accounts() if quota.total() != quota.shared_total]

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:  # noqa: ARG002
        """The account of the listener with this name; None if it has no rate here."""
        quota = self.gateway if kind == GATEWAY else self.listeners.get(name) if isinstance(name, str) else None
        return quota if quota is not None and quota.meter is not None else None

    def _set_enforced(self, enforced: bool, now: float) -> None:
        if enforced and not self._enforced:
            # No listener has waited for these debts.
            forgive_all([quota.meter for quota in (self.gateway, *self.listeners.values())], now)
        self._enforced = enforced

    def _set(self, quota: ListenerQuota, limits: AcceptLimits, before: Metering, now: float) -> None:
        quota.limits = limits
        if quota.window != self._metering.window:
            quota.window = self._metering.window
            recent_rate = SampledRate(quota.window)
            recent_rate.restore(quota.recent_rate.dump(now), now)
            quota.recent_rate = recent_rate
        rate = limits.connection_creation_rate
        quota.meter = None if rate is None else self._engine.meters.successor(KIND, quota.meter, rate, before, now)
        quota.open_at = min(quota.open_at, now + (0.0 if quota.meter is None else quota.meter.delay(now)))
