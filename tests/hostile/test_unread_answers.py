"""A client that does not read its answers costs the gateway a bounded amount of memory."""

import contextlib
import socket

from gateway.proxy.collected import MAX_ANSWER_BYTES
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import fetched
from tests.protocol import codec

MIB = 1 << 20
GROUPS = ["g" * 32_000] * 125
"""The names for a FindCoordinator of almost 4 MiB."""
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


def test_collected_answers_share_a_budget(broker, start_weir, connect):
    """The client chooses the size of the answer to a FindCoordinator, which Weir has to see whole."""
    rows = [{"key": group, "node_id": 1, "host": "127.0.0.1", "port": broker.port} for group in GROUPS]
    request = codec.encode_request(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": GROUPS}, 1, "x")
    answer = codec.encode_response(ApiKey.FIND_COORDINATOR, 4, {"coordinators": rows}, 1)
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda _: answer
    weir = start_weir(broker.bootstrap_servers)
    before = weir.resident_bytes()
    fitting = MAX_ANSWER_BYTES // len(answer)
    clients = []
    for number in range(2 * fitting):
        clients.append(connect(weir, receive_buffer=4096))
        clients[-1].send(request)
        broker.wait_for(lambda sent=number + 1: broker.count(ApiKey.FIND_COORDINATOR) == sent, "the request")
    assert all(client.is_closed() for client in clients[: fitting - 1])
    assert weir.metric("weir_connections_rejected_total", reason="collected_bytes") >= fitting - 1
    assert "bytes of answers" in weir.log()
    assert weir.resident_bytes() - before < 2 * MAX_ANSWER_BYTES
    assert len(clients[-1].receive()) == len(answer)
    assert len(connect(weir).ask(request)[0]) == len(answer)
