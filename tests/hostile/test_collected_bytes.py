"""The gateway buffers a bounded number of bytes of unfinished requests, over all clients together."""

import struct
from functools import partial
from pathlib import Path

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_sasl_handler import authenticate
from tests.weir_process import wait_until

MEBIBYTE = 1 << 20
CLIENTS = 40
BUDGET = 16 * MEBIBYTE
FRAME = authenticate(1, bytes(MEBIBYTE - 1024))
LISTENER = {"sasl": {"max_frame_bytes": MEBIBYTE}}


def test_unfinished_requests_share_a_budget(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, listener=LISTENER)
    before = weir.resident_bytes()
    for _ in range(CLIENTS):
        client = connect(weir)
        try:
            client.send(FRAME[:-1])
        except ConnectionError:  # the gateway closed the connection before the whole frame was sent
            continue
    refused = partial(weir.metric, "weir_connections_rejected_total", reason="collected_bytes")
    wait_until(lambda: refused() >= CLIENTS - 18, "the clients over the budget are refused")
    grown = weir.resident_bytes() - before
    assert grown < 3 * BUDGET, f"{grown / MEBIBYTE:.0f} MiB"
    assert "bytes of unfinished requests" in weir.log()
    answer, _ = connect(weir).ask(m.produce(2))
    assert answer[4:8] == (2).to_bytes(4, "big")


def unread_bytes(client):
    """The bytes of the client that are still in the kernel, on its side or on the gateway's."""
    number = f":{client.socket.getsockname()[1]:04X}"
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        unsent, unread = (int(count, 16) for count in queues.split(":"))
        found += unsent if local.endswith(number) else unread if remote.endswith(number) else 0
    return found


def test_oldest_idle_client_makes_room(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, listener=LISTENER)
    first, *others = (connect(weir) for _ in range(17))
    first.send(FRAME[:-1])
    wait_until(lambda: unread_bytes(first) == 0, "the gateway has read the first client")
    for client in others:
        client.send(FRAME[:-1])
    refused = partial(weir.metric, "weir_connections_rejected_total", reason="collected_bytes")
    wait_until(lambda: refused() == 1, "the first client is closed")
    assert first.is_closed()
    others[-1].send(FRAME[-1:])  # it is whole, and refused because no handshake came before
    assert others[-1].is_closed()
    assert weir.metric("weir_protocol_errors_total", reason="sasl_order") == 1


def test_budget_is_given_back(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, listener=LISTENER)
    for _ in range(3):
        client = connect(weir)
        client.send(FRAME)  # read whole, then refused because no handshake came before
        assert client.is_closed()
        with connect(weir) as leaving:
            leaving.send(FRAME[:-1])
    assert weir.metric("weir_connections_rejected_total", reason="collected_bytes") == 0
    assert weir.metric("weir_protocol_errors_total", reason="sasl_order") == 3


def test_long_sasl_request_is_refused_by_its_head(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    client.send(struct.pack(">ihhih", MEBIBYTE, ApiKey.SASL_HANDSHAKE, 1, 1, -1))
    assert client.is_closed()
    assert weir.metric("weir_protocol_errors_total", reason="frame_too_large") == 1
