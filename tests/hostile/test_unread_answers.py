"""A client that does not read its answers costs the gateway a bounded amount of memory."""

import contextlib
import socket

from protocol.api_keys import ApiKey
from tests.gateway.session import messages as m
from tests.hostile.stub_broker import fetched
from tests.protocol import codec
from tests.weir_process import wait_until

MIB = 1 << 20
STALLED_SECONDS = 1.0


def describe_quotas(correlation_id: int) -> bytes:
    """DescribeClientQuotas, which the gateway answers itself."""
    component = {"entity_type": "user", "match_type": 2}
    return codec.encode_request(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": False}, correlation_id, "x"
    )


def send_until_stalled(client: socket.socket, data: bytes, limit: int) -> int:
    """Send `data` again and again until the gateway takes no more, or `limit` bytes; returns how many it took."""
    client.settimeout(STALLED_SECONDS)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < limit:
            sent += client.send(data)
    return sent


def test_local_answers_are_bounded(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers)
    before = weir.resident_bytes()
    client = connect(weir, receive_buffer=4096)
    requests = b"".join(describe_quotas(number) for number in range(1000))
    assert send_until_stalled(client.socket, requests, 64 * MIB) < 32 * MIB
    assert weir.resident_bytes() - before < 8 * MIB


def test_broker_is_not_read_for_a_client_that_is_full(broker, start_weir, connect):
    """The client's answers fill up before its broker is connected: the gateway has to remember that."""
    broker.answers[ApiKey.FETCH] = fetched(MIB)
    weir = start_weir(broker.bootstrap_servers, quota_admins=["User:ANONYMOUS"], quotas={"entities": many_quotas(2000)})
    before = weir.resident_bytes()
    client = connect(weir, receive_buffer=4096)
    fetches = b"".join(m.fetch(number, session=(0, -1)) for number in range(150))
    # One write, so that all of it is in the chunk that fills the answers.
    client.send(b"".join(describe_quotas(number) for number in range(100)) + fetches)
    wait_until(lambda: weir.metric("weir_requests_total", api="DescribeClientQuotas") >= 1, "the first are answered")
    client.receives_nothing(STALLED_SECONDS)
    assert weir.resident_bytes() - before < 24 * MIB
    assert broker.count(ApiKey.FETCH) <= 10


def many_quotas(count: int) -> list[dict[str, object]]:
    """Quotas of so many users, which make the answer to DescribeClientQuotas long."""
    return [{"user": f"user-{number:06}", "producer_byte_rate": 1_000_000} for number in range(count)]
