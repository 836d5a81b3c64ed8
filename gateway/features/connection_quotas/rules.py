"""Kafka's connection quotas (KIP-402, KIP-612), without threads.

Source: `ConnectionQuotas` in `SocketServer.scala`. Three things differ, so that one address can't keep the others out. An
address is judged before its connection is counted anywhere else, where Kafka's acceptor first waits for the listener's rate.
The connection that goes over a listener's rate is served, and the next one waits, in the kernel. And no listener is exempt
from what holds for the whole gateway, for brokers do not connect through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

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
"""The kinds of accounts that gateways share: the rate of one listener, and of all listeners."""


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """Limits of one listener or of all: connections at a time, and new connections per second. None: no limit."""

    max_connections: int | None = None
    connection_creation_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """All limits on connections but the quotas of addresses, which are the engine's. `listeners` names every listener."""

    max_per_ip: int
    max_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    gateway: AcceptLimits = field(default_factory=AcceptLimits)
    listeners: Mapping[str, AcceptLimits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A connection that is not to be served: to be closed after `delay` seconds, so that its client does not come back at
    once. `reason` is a value of the metric label of that name."""

    reason: str
    delay: float = 0.0


class Gate:
    """A listener, or all of them: what is open, and when the next connection may be taken.

    `taken` counts all connections as far as there is a rate for them, and `recently` those of the quota window.
    """

    __slots__ = (
        "connections",
        "limits",
        "meter",
        "open_at",
        "recently",
        "shared_total",
        "taken",
        "throttle_seconds_total",
        "window",
    )

    def __init__(self, window: Window) -> None:
        self.meter: Meter | None = None
        self.shared_total = 0
        self.window = window
        self.recently = SampledRate(window)
        self.taken = 0
        self.limits = AcceptLimits()
        self.connections = 0
        self.open_at = 0.0
        self.throttle_seconds_total = 0.0

    def wait(self, now: float) -> float:
        """Seconds until it may take a connection; inf: until one is closed."""
        if self.limits.max_connections is not None and self.connections >= self.limits.max_connections:
            return inf
        return max(0.0, self.open_at - now)

    def record(self, now: float, longest: float, *, enforce: bool) -> float:
        """Count a connection that was taken; returns for how long the next one has to wait."""
        if self.meter is None:
            self.open_at = now
            return 0.0
        self.taken += 1
        self.recently.record(1, now)
        delay = min(self.meter.charge(1, now), longest)
        if delay > 0.0 and not enforce:
            self.meter.forgive(now)
            return 0.0
        self.open_at = now + delay
        return delay

    def total(self) -> int:
        """Connections taken here."""
        return self.taken

    def recent(self, now: float) -> int:
        """Those of the quota window."""
        return round(self.recently.kept(now))

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
        """The connection is closed. To say so again changes nothing."""
        if self._open:
            self._open = False
            self._quotas.leave(self._listener, self.ip)


class ConnectionQuotas:
    """Counts connections by address and listener. Times are monotonic seconds."""

    def __init__(self, engine: QuotaEngine, limits: ConnectionLimits, now: float) -> None:
        self._engine = engine
        self._limits = limits
        self._metering = engine.settings.metering_of(CONNECTIONS)
        self._gateway = Gate(self._metering.window)
        self._listeners: dict[str, Gate] = {}
        self._per_ip: dict[str, int] = {}
        self._on_leave: list[Callable[[], None]] = []
        self.apply(limits, now)

    def on_leave(self, callback: Callable[[], None]) -> None:
        """Call back whenever a connection has been closed: there may be room for another."""
        self._on_leave.append(callback)

    def apply(self, limits: ConnectionLimits, now: float) -> None:
        """Change the limits, or follow the engine's algorithm and window; they hold for new connections, and close nobody."""
        before, self._metering = self._metering, self._engine.settings.metering_of(CONNECTIONS)
        self._limits = limits
        self._set(self._gateway, limits.gateway, before, now)
        for name, its_limits in limits.listeners.items():
            gate = self._listeners.setdefault(name, Gate(self._metering.window))
            self._set(gate, its_limits, before, now)
        for callback in self._on_leave:
            callback()

    def wait(self, listener: str, now: float) -> float:
        """Seconds until the listener may take its next connection: 0.0 at once, inf when another one is closed."""
        return max(self._gateway.wait(now), self._listeners[listener].wait(now))

    def arrive(self, listener: str, ip: str, now: float) -> ConnectionSlot | TurnedAway:
        """A listener that need not wait has taken a connection: count it, or turn it away.

        A delay is at most one sample of the quota window, as in Kafka.
        """
        at_once = self._per_ip.get(ip, 0)
        if at_once >= self.max_per_ip(ip):
            return TurnedAway("max_per_ip")
        enforce, longest = self._engine.settings.enforce, self._metering.window.seconds
        bucket = self._engine.acquire_ip(KIND, ip, now)
        if bucket is not None:
            delay, enforced = bucket.enter(longest, now)
            self._engine.release(bucket, now)
            if enforced:
                return TurnedAway("connection_creation_rate", delay)
        gate = self._listeners[listener]
        gate.throttle_seconds_total += max(
            self._gateway.record(now, longest, enforce=enforce), gate.record(now, longest, enforce=enforce)
        )
        self._per_ip[ip] = at_once + 1
        gate.connections += 1
        self._gateway.connections += 1
        return ConnectionSlot(self, listener, ip)

    def leave(self, listener: str, ip: str) -> None:
        """A connection that had been counted is closed. Raises ValueError where none is."""
        left = self._per_ip.get(ip, 0) - 1
        if left < 0:
            raise ValueError(f"no connection of {ip} is open")
        if left:
            self._per_ip[ip] = left
        else:
            del self._per_ip[ip]
        self._listeners[listener].connections -= 1
        self._gateway.connections -= 1
        for callback in self._on_leave:
            callback()

    def recent_uses(self, now: float) -> dict[str | None, RecentUse]:
        """The recent use of the rates of listeners, by name, and of the gateway (None)."""
        gates: list[tuple[str | None, Gate]] = [(None, self._gateway), *self._listeners.items()]
        found = {
            name: recent_use(KIND, gate.meter, gate.limits.connection_creation_rate, self._engine, now) for name, gate in gates
        }
        return {name: use for name, use in found.items() if use is not None}

    def restore(self, listener: str | None, use: RecentUse, now: float) -> None:
        """Put back what a listener, or the gateway (None), remembered; nothing where it has no such rate any more."""
        gate = self._gateway if listener is None else self._listeners.get(listener)
        if gate is None or gate.meter is None or gate.limits.connection_creation_rate is None:
            return
        restore_meter(gate.meter, KIND, gate.limits.connection_creation_rate, use, self._engine, now)
        if self._engine.settings.enforce:
            gate.open_at = now + min(gate.meter.delay(now), self._metering.window.seconds)

    def max_per_ip(self, ip: str) -> int:
        """How many connections an address may have at a time."""
        return self._limits.max_per_ip_overrides.get(ip, self._limits.max_per_ip)

    def count(self, ip: str) -> int:
        """How many connections an address has."""
        return self._per_ip.get(ip, 0)

    # As sharing sees them: rates are those of all gateways together, where a listener is known by its name.

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset((LISTENER, GATEWAY))

    def accounts(self) -> list[tuple[UsageKey, UsageAccount]]:
        """The listeners and the gateway, as far as they have rates."""
        gates: list[tuple[UsageKey, Gate]] = [((GATEWAY, ""), self._gateway)]
        gates += [((LISTENER, name), gate) for name, gate in self._listeners.items()]
        return [(entity, gate) for entity, gate in gates if gate.meter is not None]

    def changed(self) -> list[tuple[UsageKey, UsageAccount]]:
        """Of those, the ones that have taken connections since sharing has taken note of them."""
        return [(entity, gate) for entity, gate in self.accounts() if gate.total() != gate.shared_total]

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:  # noqa: ARG002
        """The listener of that name, if it has a rate here."""
        gate = self._gateway if kind == GATEWAY else self._listeners.get(name) if isinstance(name, str) else None
        return gate if gate is not None and gate.meter is not None else None

    @property
    def listeners(self) -> Mapping[str, Gate]:
        """Every listener by its name."""
        return self._listeners

    @property
    def gateway(self) -> Gate:
        """All listeners together."""
        return self._gateway

    def _set(self, gate: Gate, limits: AcceptLimits, before: Metering, now: float) -> None:
        gate.limits = limits
        if gate.window != self._metering.window:
            gate.window = self._metering.window
            recently = SampledRate(gate.window)
            recently.restore(gate.recently.dump(now), now)
            gate.recently = recently
        rate = limits.connection_creation_rate
        gate.meter = None if rate is None else self._engine.changed_meter(KIND, gate.meter, rate, before, now)
