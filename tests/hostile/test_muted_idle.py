"""A muted connection is closed after `connections.max_idle_ms` without traffic, as KIP-219 says."""

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m

QUOTA = 1_000
QUOTAS = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "producer_byte_rate": QUOTA}]}
IDLE_MS = 5_000


def test_muted_connection_ends_by_idleness(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS, connections={"max_idle_ms": IDLE_MS})
    client = connect(weir)
    client.ask(m.produce(1, size=600 * QUOTA))  # muted for ten minutes
    client.send(m.produce(2))  # not read, so not counted as activity
    assert client.is_closed()
    assert broker.count(ApiKey.PRODUCE) == 1
    assert weir.metric("weir_throttled_requests_total", kind="produce") == 1
    assert weir.metric("weir_connections_rejected_total", reason="idle") == 1
    assert weir.metric("weir_muted_connections") == 0
