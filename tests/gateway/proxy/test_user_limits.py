"""Connections of users over their limits: clients that wait for their turn, and clients that are refused."""

import pytest

from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.proxy.counters import Counters
from gateway.proxy.decision import MAX_OPENED
from gateway.proxy.handlers.sasl import AuthenticationGate, SaslObserver
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_sasl_handler import authenticate, authenticated, handshake, handshaken, log_in, passes
from tests.gateway.proxy.transcript import START, Transcript


class Clients:
    """Connections of one listener whose users have limits."""

    def __init__(self, user="alice", **limits):
        self.engine = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(user), limits),)), START)
        self.quotas = ConnectionQuotas(self.engine, ConnectionLimits(1_000, listeners={"clients": AcceptLimits()}), START)
        self.counters = Counters()
        self.gate = AuthenticationGate(1_000)

    def connect(self, *, gate=True):
        handlers = SaslObserver(self.counters, "sub").handler_factories()
        gate = self.gate if gate else None
        t = Transcript(engine=self.engine, handlers=handlers, authentication_gate=gate, counters=self.counters)
        slot = self.quotas.accept("clients", "10.0.0.1", START)
        assert isinstance(slot, ConnectionSlot)
        t.core.connection.slot = slot
        return t

    def log_in(self, count=1):
        """Open that many connections of alice; returns the last one."""
        for _ in range(count):
            t = self.connect()
            t.core.begin(START)
            log_in(t)
        return t

    def refuse_with_held(self, *frames, drains=False):
        """Refuse a connection whose client has sent `frames` behind its login, and behind one of too many ApiVersions.

        With `drains`, a drain has begun before the refusal.
        """
        t = self.connect()
        t.core.begin(START)
        passes(t, handshake(1, "PLAIN"), handshaken(1))
        before = [authenticate(2, b"\0alice\0secret"), *(m.api_versions(3) for _ in range(MAX_OPENED))]
        t.client_sends(*before, m.api_versions(4), *frames)
        t.goes_on()
        t.broker_got(*before)
        if drains:
            t.ends()
        t.broker_answers(authenticated(2, b""))
        assert t.closes_after == 1.0
        for _ in range(MAX_OPENED):
            t.broker_answers(m.versions_are(3, []))
        return t


def test_user_is_counted_after_authentication():
    clients = Clients(max_connections=1)
    t = clients.connect()
    t.core.begin(START)
    assert clients.quotas.users.count("ANONYMOUS") == 0
    log_in(t)
    assert clients.quotas.users.count("alice") == 1
    t.client_sends(m.produce(20))
    t.broker_got(m.produce(20))


def test_client_over_maximum_gets_its_answer_before_the_close():
    clients = Clients(max_connections=1)
    clients.log_in()
    t = clients.log_in()  # with the broker's answer
    assert t.closes_after == 1.0
    t.client_sends(m.produce(20))
    t.broker_got()
    assert clients.quotas.users.count("alice") == 1


def test_requests_held_behind_a_refused_login_are_dropped():
    clients = Clients(max_connections=1)
    clients.log_in()
    clients.refuse_with_held(m.produce(20), m.heartbeat(21)).broker_got()


def test_bytes_read_before_a_refusal_are_not_forwarded():
    clients = Clients(max_connections=1)
    clients.log_in()
    t = clients.log_in()
    t.client_sends_into_the_loop(m.produce(20))
    t.broker_got()


@pytest.mark.parametrize("drains", [False, True])
def test_drain_forwards_no_held_request_of_a_refused_user(drains):
    """A drain forwards held requests with acks=0."""
    clients = Clients(max_connections=1)
    clients.log_in()
    t = clients.refuse_with_held(m.produce(20, acks=0), drains=drains)
    if not drains:
        t.ends()
    assert t.half_closes()
    t.client_sends_into_the_loop(m.produce(21, acks=0))
    t.broker_got()


def test_client_over_rate_is_muted_until_its_turn():
    clients = Clients(connection_creation_rate=1)
    clients.log_in(10)
    t = clients.log_in(2)
    t.client_sends(m.produce(20))
    t.broker_got()
    t.passes(1.9)
    t.broker_got()
    t.passes(0.2)
    t.broker_got(m.produce(20))
    assert (t.closes_after, clients.counters.muted) == (None, 1)  # the one before it never gets the time


def test_authentication_again_neither_mutes_nor_counts():
    clients = Clients(connection_creation_rate=1, max_connections=11)
    t = clients.log_in(10)
    for _ in range(5):
        log_in(t)
    assert clients.quotas.users.count("alice") == 10
    t.client_sends(m.produce(20))
    t.broker_got(m.produce(20))


@pytest.mark.parametrize("gate", [False, None])
def test_client_without_authentication_is_counted_at_once(gate):
    clients = Clients("ANONYMOUS", max_connections=1)
    clients.gate.required = False
    for closes_after in (None, 1.0):
        t = clients.connect(gate=gate is False)
        t.core.begin(START)
        assert t.closes_after == closes_after


def test_muted_client_without_authentication_is_not_read():
    clients = Clients("ANONYMOUS", connection_creation_rate=1)
    for _ in range(11):
        t = clients.connect(gate=False)
        t.core.begin(START)
    t.client_sends(m.produce(20))
    t.broker_got()
    t.passes(1.1)
    t.broker_got(m.produce(20))


def test_client_is_counted_when_the_brokers_turn_out_to_be_open():
    clients = Clients("ANONYMOUS", max_connections=1)
    clients.gate.required = None
    first, second = clients.connect(), clients.connect()
    for t in (first, second):
        t.core.begin(START)
        t.client_sends(m.produce(20))
        t.broker_got()
    clients.gate.required = False
    first.core.ready(START)
    first.broker_got(m.produce(20))
    second.core.ready(START)
    assert second.closes_after == 1.0
    second.client_sends_into_the_loop(m.produce(21))
    second.broker_got()


def test_handshake_names_the_user_of_a_connection():
    clients = Clients(max_connections=1)
    clients.gate.required = False
    for closes_after in (None, 1.0):
        t = clients.connect()
        t.core.client.identify("alice", START)  # the session of a TLS client
        t.core.begin(START)
        assert t.closes_after == closes_after
