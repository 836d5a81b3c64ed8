"""A Produce is charged for the bytes that arrive, not for the length that its header claims."""

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.weir_process import wait_until

CLAIMED_BYTES = 100_000_000
QUOTAS = {"entities": [{"client-id": "etl", "producer_byte_rate": 1 << 20}]}


def test_claimed_bytes_cost_nothing(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    head = CLAIMED_BYTES.to_bytes(4, "big") + m.produce(1)[4:47]
    for _ in range(20):
        with connect(weir) as client:
            client.send(head)
    wait_until(lambda: weir.metric("weir_connections") == 0, "all clients have disconnected")
    (row,) = weir.usage()
    assert row["throttle_left"] == 0.0
    assert row["amount_total"] <= 20 * len(head)
    answer, _ = connect(weir).ask(m.produce(2))
    assert m.produced(2)[4:8] == answer[4:8]
    assert broker.count(ApiKey.PRODUCE) == 1
