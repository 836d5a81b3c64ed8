import io
from math import inf

import pytest

from gateway.clock import monotonic
from gateway.events import ConnectionRejected
from gateway.features.connection_quotas.admission import ConnectionAdmission, HeldSockets
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings


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
    assert admission.wait("clients", lambda: None) == inf
    assert f"listener clients: new connections wait, {words}" in caplog.text


class Starts:
    """An acceptor that counts its starts."""

    last_turn = 0.0
    count = 0

    def start(self) -> None:
        self.count += 1


@pytest.mark.parametrize("rate", [None, 1_000.0])
def test_delayed_acceptor_starts_once_its_rate_is_raised(rate):
    """Its wait is up to a sample, and longer with peers."""

    def allowing(rate):
        return ConnectionLimits(10, listeners={"clients": AcceptLimits(connection_creation_rate=rate)})

    feature = ConnectionQuotasFeature(allowing(0.5), QuotaEngine(QuotaSettings(), monotonic()), Outlet("", []))
    acceptor = Starts()
    while feature.admission.wait("clients", acceptor) <= 0.0:
        feature.quotas.accept("clients", "10.0.0.7", monotonic(), limit_address=False)
    for _ in range(2):
        feature.apply(allowing(rate))
        assert acceptor.count == 1
    assert feature.admission.wait("clients", acceptor) < 0.1
