"""A malformed frame closes its connection, and the requests before it still reach the broker."""

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m

NEGATIVE_LENGTH = b"\xff" * 20


@pytest.mark.parametrize("upstream_connected", [True, False], ids=["later", "first"])
def test_unanswered_requests_before_bad_frame_arrive(upstream_connected, broker, start_weir, connect):
    """The gateway connects to the broker for a client's first requests, although the client has already gone."""
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    if upstream_connected:
        client.ask(m.metadata(1))
    client.send(m.produce(2, acks=0), m.produce(3, acks=0), NEGATIVE_LENGTH)
    assert client.is_closed()
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == 2, "both Produce requests")
