"""Pipelined Fetches share one balance: a client does not get one burst per Fetch."""

from protocol.api_keys import ApiKey
from protocol.bodies.fetch import peek_fetch
from protocol.headers import parse_request_header
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import fetched

QUOTA = 100_000
BURST = 10 * QUOTA
FETCHES = 100


def max_bytes(request):
    """The max_bytes of a Fetch."""
    header = parse_request_header(request.frame, 4, len(request.frame), len(request.frame))
    return peek_fetch(request.frame, header.body_offset, len(request.frame), request.version).max_bytes


def test_pipelined_fetches_share_one_burst(broker, start_weir, connect):
    """The broker fills each Fetch up to max_bytes. By the second answer, the broker has all Fetches that passed at once."""
    broker.answers[ApiKey.FETCH] = lambda request: fetched(max_bytes(request))(request)
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "consumer_byte_rate": QUOTA}]})
    client = connect(weir)
    client.send(*(m.fetch(number) for number in range(FETCHES)))
    numbers = [int.from_bytes(client.receive()[4:8], "big") for _ in range(2)]
    assert numbers == [0, 1]
    assert sum(max_bytes(request) for request in broker.received) <= 1.5 * BURST
