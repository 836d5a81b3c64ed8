"""Clients that connect before the gateway's first cluster lookup have to authenticate as well."""

import threading

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import Request, StubBroker


class HeldLook:
    """Delays the Metadata answer to the gateway's first cluster lookup."""

    def __init__(self, broker: StubBroker) -> None:
        self._broker = broker
        self._answer = broker.metadata
        self._request: Request | None = None
        self._asked = threading.Event()
        broker.answers[ApiKey.METADATA] = self._hold

    def wait(self) -> None:
        assert self._asked.wait(20.0)

    def finish(self) -> None:
        """Answer as a broker without SASL. No client may be connected yet, because every connection gets the answer."""
        self._broker.answers[ApiKey.METADATA] = self._answer
        self._broker.send(self._answer(self._request))

    def finish_with_sasl(self) -> None:
        """Answer as a broker that requires SASL."""
        del self._broker.answers[ApiKey.METADATA]
        self._broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.answer(error_code=33, mechanisms=["PLAIN"])
        self._broker.cut()

    def _hold(self, request: Request) -> None:
        self._request = request
        self._asked.set()


@pytest.fixture
def look(broker):
    """The pending first lookup of the gateway at `broker`."""
    return HeldLook(broker)


def test_early_client_must_authenticate_if_required(broker, look, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, wait="/livez")
    client = connect(weir)
    client.send(m.produce(1))
    look.wait()
    assert broker.count(ApiKey.PRODUCE) == 0
    look.finish_with_sasl()
    assert client.is_closed()
    assert broker.count(ApiKey.PRODUCE) == 0
    assert weir.metric("weir_protocol_errors_total", reason="not_authenticated") == 1


def test_early_client_is_served_if_sasl_is_not_required(broker, look, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, wait="/livez")
    client = connect(weir)
    client.send(m.produce(1), m.metadata(2))
    look.wait()
    assert broker.received == []
    look.finish()
    assert [client.receive()[4:8] for _ in range(2)] == [(1).to_bytes(4, "big"), (2).to_bytes(4, "big")]
