"""Connection quotas before a real broker: an address that connects too often is refused, and others notice nothing."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.scenarios.storm import STEADY_IP, STORM_IP, ask, open_from
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.test_malformed_requests import read_answer
from tests.weir_process import Weir, closes, wait_until

pytestmark = pytest.mark.broker

RATE, BURST = 5, 50  # of an address: the window has 11 samples of a second, and the burst is ten samples


@pytest.fixture
def gateway(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Weir]:
    config = {
        "quotas": {
            "entities": [
                {"ip": STORM_IP, "connection_creation_rate": RATE},
                {"client-id": "hasty", "producer_byte_rate": 1_000},
            ]
        },
        "connections": {"max_per_ip_overrides": {"127.0.0.9": 2}},
    }
    with Weir(tmp_path, kafka.bootstrap_servers, config) as running:
        yield running


def address(gateway: Weir) -> tuple[str, int]:
    return "127.0.0.1", gateway.ports[0]


def is_closed(client: socket.socket) -> bool:
    """Return True if the gateway has already closed the connection."""
    client.setblocking(False)
    try:
        return closes(client)
    except BlockingIOError:
        return False
    finally:
        client.settimeout(30.0)


def rejected(gateway: Weir) -> float:
    return gateway.metric("weir_connections_rejected_total")


def test_storm_from_one_address_is_refused_alone(gateway: Weir) -> None:
    before = gateway.metric("weir_connections_accepted_total")
    with ExitStack() as stack:
        steady = stack.enter_context(open_from(STEADY_IP, address(gateway)))
        storm = []
        for number in range(600):
            storm.append(stack.enter_context(open_from(STORM_IP, address(gateway))))
            if number % 20 == 0:
                ask(steady)
                with open_from("127.0.0.4", address(gateway)) as newcomer:
                    ask(newcomer)

        def fates() -> tuple[int, int]:
            """Return the numbers of accepted and refused connections of the storm."""
            accepted = int(gateway.metric("weir_connections_accepted_total") - before)
            return accepted - 1 - 30, int(gateway.metric("weir_connections_rejected_total", reason="connection_creation_rate"))

        # The last connections may still be in the kernel's queue.
        wait_until(lambda: sum(fates()) == 600, "all connections have arrived")
        wait_until(lambda: gateway.metric("weir_held_connections") == 0, "no connection is held")
        let_in, turned_away = fates()
        assert let_in + turned_away == 600
        assert turned_away > 0
        assert let_in >= BURST
        assert gateway.client_sockets() <= let_in + 1 + 30
        # Accepted connections stay open, refused ones are closed.
        wait_until(lambda: sum(map(is_closed, storm)) == turned_away, "exactly the refused connections are closed")
        ask(storm[0])
        ask(steady)
        labels = {"kind": "connection", "ip": STORM_IP}
        assert gateway.metric("weir_throttled_requests_total", **labels) == turned_away
        assert gateway.metric("weir_quota_limit", **labels) == RATE
    wait_until(lambda: gateway.metric("weir_listener_connections") == 0, "every place is free again")
    assert gateway.client_sockets() == 0


def test_address_override_sets_its_maximum(gateway: Weir) -> None:
    before = gateway.metric("weir_connections_rejected_total", reason="max_per_ip")
    with open_from("127.0.0.9", address(gateway)) as first, open_from("127.0.0.9", address(gateway)):
        ask(first)
        with open_from("127.0.0.9", address(gateway)) as third:
            assert closes(third)
        ask(first)
    assert gateway.metric("weir_connections_rejected_total", reason="max_per_ip") == before + 1


def test_early_time_is_that_of_the_kernel(gateway: Weir) -> None:
    hasty = {"kind": "produce", "user": "", "client_id": "hasty"}
    body = struct.pack(">hhi", -1, 1, 1_000) + struct.pack(">ih", 1, 4) + b"none" + struct.pack(">iii", 1, 0, 20_000)
    header = struct.pack(">hhih", 0, 3, 7, 5) + b"hasty"
    produce = struct.pack(">i", len(header) + len(body) + 20_000) + header + body + bytes(20_000)
    with open_from(STEADY_IP, address(gateway)) as client:
        client.sendall(produce)
        read_answer(client)
        wait_until(lambda: gateway.api("throttles")["muted_connections"] == 1, "the gateway mutes")
        client.sendall(header)  # the throttle time is ten seconds
        wait_until(
            lambda: gateway.metric("weir_early_requests_total", **hasty) == 1, "the early request is counted once the mute ends"
        )
        # The early time is far from the asserted bounds, because the kernel counts in ms and a busy machine may lose some.
        assert 0.1 < gateway.metric("weir_early_request_seconds_total", **hasty) <= 10.1


def test_listener_limits_reload_and_connections_wait(gateway: Weir) -> None:
    listener = {**gateway.config["listeners"][0], "max_connections": 1}
    changed = {**gateway.config, "listeners": [listener]}
    with ExitStack() as stack:
        first = stack.enter_context(open_from(STEADY_IP, address(gateway)))
        ask(first)
        gateway.write_config(changed)
        gateway.reload()
        wait_until(lambda: gateway.metric("weir_listener_max_connections") == 1, "the new maximum is in effect")
        refused = rejected(gateway)
        second = stack.enter_context(open_from(STEADY_IP, address(gateway)))
        second.settimeout(0.3)
        with pytest.raises(TimeoutError):
            ask(second)
        second.settimeout(30.0)
        first.close()
        # The request that was sent before the accept is answered now.
        read_answer(second)
        assert rejected(gateway) == refused
    gateway.write_config(gateway.config)
    gateway.reload()
    wait_until(lambda: gateway.metric("weir_listener_max_connections") == 0, "the maximum is removed")
    assert "max_connections" in Path(gateway.log_file).read_text()
