"""A muted connection still ends after `connections.max_idle_ms` without a byte on the socket, as KIP-219 has it."""

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m

QUOTA = 1_000
QUOTAS = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "producer_byte_rate": QUOTA}]}
IDLE_MS = 500


def test_muted_connection_ends_by_idleness(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS, connections={"max_idle_ms": IDLE_MS})
    client = connect(weir)
    client.ask(m.produce(1, size=600 * QUOTA))  # muted for ten minutes
    assert weir.metric("weir_muted_connections") == 1
    client.send(m.produce(2))  # unread, so it is no activity
    assert client.is_closed()
    assert broker.count(ApiKey.PRODUCE) == 1
    assert weir.metric("weir_connections_rejected_total", reason="idle") == 1
    assert weir.metric("weir_muted_connections") == 0
