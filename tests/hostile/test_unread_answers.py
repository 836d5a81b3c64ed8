"""A client that does not read its answers costs the gateway a bounded amount of memory."""

import contextlib
import socket

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import fetched
from tests.protocol import codec

MIB = 1 << 20
STALLED_SECONDS = 1.0


def describe_quotas(correlation_id: int) -> bytes:
    """A DescribeClientQuotas, which the gateway answers itself."""
    component = {"entity_type": "user", "match_type": 2}
    return codec.encode_request(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": False}, correlation_id, "x"
    )


def send_until_stalled(client: socket.socket, data: bytes) -> int:
    """Send `data` until the gateway reads nothing for a second; return the number of bytes sent."""
    client.settimeout(STALLED_SECONDS)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += client.send(data[sent : sent + MIB])
    return sent


def test_local_answers_are_bounded(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers)
    before = weir.resident_bytes()
    client = connect(weir, receive_buffer=4096)
    requests = describe_quotas(1) * 2_000_000
    assert send_until_stalled(client.socket, requests) < len(requests) // 2
    assert weir.resident_bytes() - before < 8 * MIB


def test_broker_answers_are_bounded(broker, start_weir, connect):
    """Weir's own answers fill the buffers before the broker is connected; then the broker would send 150 MiB more."""
    broker.answers[ApiKey.FETCH] = fetched(MIB)
    weir = start_weir(broker.bootstrap_servers)
    before = weir.resident_bytes()
    client = connect(weir, receive_buffer=4096)
    requests = describe_quotas(1) * 800_000
    if send_until_stalled(client.socket, requests) == len(requests):
        client.send(*(m.fetch(number, session=(0, -1)) for number in range(150)))
        broker.wait_for(lambda: broker.count(ApiKey.FETCH) == 150, "every Fetch")
    assert weir.resident_bytes() - before < 8 * MIB
