"""A mute ends when a changed configuration demands less, even if the new quota belongs to another bucket."""

import pytest

from tests.gateway.proxy import messages as m

SLOW = {"client-id": "etl", "producer_byte_rate": 1024}
CHANGES = {
    "user quota": {"user": "ANONYMOUS", "producer_byte_rate": 10_000_000},
    "quota of both": {"user": "ANONYMOUS", "client-id": "etl", "producer_byte_rate": 10_000_000},
    "exemption": {"user": "ANONYMOUS", "exempt": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_mute_is_recomputed_in_the_new_bucket(change, broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [SLOW]})
    client = connect(weir)
    client.ask(m.produce(1, size=1_000_000))
    client.send(m.produce(2))
    assert weir.metric("weir_muted_connections") == 1
    weir.write_config({**weir.config, "quotas": {"entities": [SLOW, CHANGES[change]]}})
    weir.reload()
    assert client.receive()[4:8] == (2).to_bytes(4, "big")
