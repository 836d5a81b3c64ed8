"""A malformed frame closes its connection, and the requests before it still reach the broker."""

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m

NEGATIVE_LENGTH = b"\xff" * 20


def test_unanswered_requests_before_bad_frame_arrive(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    client.ask(m.metadata(1))  # the broker is connected from here on
    client.send(m.produce(2, acks=0), m.produce(3, acks=0), NEGATIVE_LENGTH)
    assert client.is_closed()
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == 2, "both Produce requests")


def test_first_requests_before_bad_frame_arrive(broker, start_weir, connect):
    """The gateway connects to the broker for these requests although their client has already gone."""
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    client.send(m.produce(1, acks=0), m.produce(2, acks=0), NEGATIVE_LENGTH)
    assert client.is_closed()
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == 2, "both Produce requests")
