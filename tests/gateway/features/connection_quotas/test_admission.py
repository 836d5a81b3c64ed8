import asyncio
import io

import pytest

from gateway.clock import monotonic
from gateway.events import ConnectionRejected
from gateway.features.connection_quotas import admission as module
from gateway.features.connection_quotas.admission import ConnectionAdmission, HeldSockets
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from loadtest.simulation.virtual_loop import BEGIN, VirtualLoop, run_in


class BusyPort:
    """A port at which connections always wait."""

    def __init__(self, listener, admission):
        self.listener, self.admission = listener, admission
        self.last_turn = 0.0
        self.accepted = []

    def start(self):
        asyncio.get_running_loop().call_soon(self.look)

    def look(self):
        while self.admission.may_accept(self.listener, self):
            self.admission.quotas.accept(self.listener, "10.0.0.7", module.monotonic())
            self.accepted.append(module.monotonic())


def test_held_sockets_close_in_order_of_their_times():
    held = HeldSockets(10)
    late, early = io.BytesIO(), io.BytesIO()
    assert held.hold(late, 3.0)
    assert held.hold(early, 1.0)
    assert held.close_due(0.5) == 1.0
    assert (early.closed, late.closed) == (False, False)
    assert held.close_due(1.0) == 3.0
    assert (early.closed, late.closed, len(held)) == (True, False, 1)
    assert held.close_due(4.0) is None
    assert (late.closed, len(held)) == (True, 0)


def test_full_hold_accepts_no_more_sockets():
    held = HeldSockets(2)
    first, second, third = io.BytesIO(), io.BytesIO(), io.BytesIO()
    assert [held.hold(each, 1.0) for each in (first, second, third)] == [True, True, False]
    assert not third.closed  # the caller's to close
    held.close_due(1.0)
    assert held.hold(third, 2.0)
    held.close_all()
    assert (third.closed, len(held)) == (True, 0)


def test_event_of_a_refused_user_names_the_user():
    class Events(list):
        notify = list.append

    events = Events()
    settings = QuotaSettings((EntityQuota(ClientQuotaEntity("alice"), {"max_connections": 1}),))
    quotas = ConnectionQuotas(QuotaEngine(settings, 0.0), ConnectionLimits(10, listeners={"clients": AcceptLimits()}), 0.0)
    ConnectionAdmission(quotas, Outlet("weir-1", [events], wall=lambda: 1.5))
    for _ in range(2):
        quotas.accept("clients", "10.0.0.7", 0.0).identify("alice", 0.0)
    expected = {"reason": "max_per_user", "address": "10.0.0.7", "listener": "clients", "user": "alice"}
    assert events == [ConnectionRejected(time_ms=1500, last_ms=1500, gateway="weir-1", **expected)]


@pytest.mark.parametrize(
    ("gateway", "listener", "words"),
    [
        (None, 1, "because listeners[].max_connections (1) are open — raise it, or close"),
        (1, None, "because connections.max_connections (1) are open — raise it, or close"),
        (1, 1, "because connections.max_connections (1) are open"),
    ],
)
def test_full_listener_names_the_key_to_raise(gateway, listener, words, caplog):
    limits = ConnectionLimits(10, gateway=AcceptLimits(gateway), listeners={"clients": AcceptLimits(listener)})
    quotas = ConnectionQuotas(QuotaEngine(QuotaSettings(), 0.0), limits, 0.0)
    admission = ConnectionAdmission(quotas, Outlet("weir-1", [], wall=lambda: 1.5))
    quotas.accept("clients", "10.0.0.7", 0.0)
    assert not admission.may_accept("clients", BusyPort("clients", admission))
    assert f"listener clients: new connections wait, {words}" in caplog.text


@pytest.mark.parametrize(("gateway", "listener"), [(None, 5.0), (5.0, None), (20.0, 5.0)])
def test_ports_share_a_rate_in_turn(gateway, listener, monkeypatch):
    """In the order of their timers, the first port got each connection of a listener, or of the gateway."""
    loop = VirtualLoop()
    monkeypatch.setattr(module, "monotonic", loop.time)
    limits = ConnectionLimits(
        10_000,
        gateway=AcceptLimits(None, gateway),
        listeners={name: AcceptLimits(None, listener) for name in ("clients", "others")},
    )
    admission = ConnectionAdmission(
        ConnectionQuotas(QuotaEngine(QuotaSettings(), BEGIN), limits, BEGIN), Outlet("weir-1", [], wall=lambda: 1.5)
    )
    ports = [BusyPort(name, admission) for name in ("clients", "clients", "others", "clients")]

    async def accept():
        for port in ports:
            port.start()
        await asyncio.sleep(120.0)
        admission.close()

    run_in(loop, accept())
    loop.end()
    for name in ("clients", "others"):
        counts = [sum(when > BEGIN + 30.0 for when in port.accepted) for port in ports if port.listener == name]
        assert min(counts) > 0
        assert max(counts) - min(counts) <= 1
    if listener is None:
        counts = [sum(when > BEGIN + 30.0 for when in port.accepted) for port in ports]
        assert max(counts) - min(counts) <= 1


class Starts:
    """An acceptor that counts its starts."""

    last_turn = 0.0
    count = 0

    def start(self) -> None:
        self.count += 1


@pytest.mark.parametrize("rate", [None, 1_000.0])
async def test_delayed_acceptor_starts_once_its_rate_is_raised(rate):
    """Its wait is up to a sample, and longer with peers."""

    def allowing(rate):
        return ConnectionLimits(10, listeners={"clients": AcceptLimits(connection_creation_rate=rate)})

    feature = ConnectionQuotasFeature(allowing(0.5), QuotaEngine(QuotaSettings(), monotonic()), Outlet("", []))
    acceptor = Starts()
    while feature.admission.may_accept("clients", acceptor):
        feature.quotas.accept("clients", "10.0.0.7", monotonic(), limit_address=False)
    for _ in range(2):
        feature.apply(allowing(rate))
        assert acceptor.count == 1
    assert feature.quotas.wait("clients", monotonic()) < 0.1
    feature.admission.close()
