"""A gateway behind a real HAProxy that sends PROXY headers: limits, logs and the ledger have the clients' addresses."""

import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.events import ConnectionRejected, ThrottleEvent
from loadtest.scenarios.storm import ask, open_from
from loadtest.testkit.certificates import LOOPBACK, Authority
from loadtest.testkit.gateway_process import HOST
from loadtest.testkit.kafka import free_port
from tests.broker.test_ledger_recording import flushed
from tests.gateway.proxy import messages as m
from tests.haproxy_process import BALANCER, Frontend, haproxy
from tests.hostile.stub_broker import StubBroker
from tests.protocol.proxy_headers import IPV4, binary, line
from tests.weir_process import Weir, closes, wait_until

pytestmark = pytest.mark.process

STRANGER = "127.0.0.4"
TLS_FROM_CLIENT = ("v2ssl", "tls")
WAYS = {"v1": "127.0.1", "v2": "127.0.2", "v2ssl": "127.0.3", "tls": "127.0.4"}
"""HAProxy's frontends, each with a network of clients, because the log has one line a minute for each address."""

HALF_HEADERS = 1_000


@dataclass
class Place:
    """A gateway with two listeners, `plain` and `encrypted`, and HAProxy's ports."""

    gateway: Weir
    plain: int
    encrypted: int
    ports: dict[str, int]
    trust: ssl.SSLContext
    ledger: Path

    @contextmanager
    def connection(self, way: str, ip: str) -> Iterator[socket.socket]:
        """A client's connection through HAProxy."""
        with open_from(ip, (HOST, self.ports[way])) as client:
            if way not in TLS_FROM_CLIENT:
                yield client
                return
            with self.trust.wrap_socket(client, server_hostname="localhost") as encrypted:
                yield encrypted

    def rejected(self, reason: str) -> float:
        return self.gateway.metric("weir_connections_rejected_total", reason=reason)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("haproxy")
    authority = Authority(directory / "ca")
    files = authority.issue("server", LOOPBACK)
    encrypted, ports = free_port(), {way: free_port() for way in WAYS}
    with ExitStack() as stack:
        broker = stack.enter_context(StubBroker())
        config = {
            "quotas": {"entities": [{"client-id": "etl", "producer_byte_rate": 1_000}]},
            "connections": {"max_per_ip_overrides": {f"{network}.2": 2 for network in WAYS.values()}},
            "ledger": {"path": str(directory / "ledger"), "flush_seconds": 1},
        }
        proxy_protocol = {"mode": "required", "trusted": [BALANCER], "header_seconds": 10}
        weir = Weir(directory / "weir", broker.bootstrap_servers, config, {"proxy_protocol": proxy_protocol})
        plain = weir.ports[0]
        tls = {"cert": str(files.cert), "key": str(files.key)}
        weir.config["listeners"].append({
            "name": "encrypted", "host": HOST, "bootstrap_port": encrypted, "sni": "broker-{id}.example.com", "tls": tls,
            "advertised_host": "localhost", "proxy_protocol": {**proxy_protocol, "mode": "allowed"},
        })  # fmt: skip
        weir.write_config(weir.config)
        stack.enter_context(weir)
        binds = {way: f"{HOST}:{port}" for way, port in ports.items()}
        frontends = {
            "v1": Frontend(binds["v1"], f"{HOST}:{plain} send-proxy"),
            "v2": Frontend(binds["v2"], f"{HOST}:{plain} send-proxy-v2 check inter 100ms"),
            "v2ssl": Frontend(f"{binds['v2ssl']} ssl crt {files.both}", f"{HOST}:{plain} send-proxy-v2-ssl"),
            "tls": Frontend(binds["tls"], f"{HOST}:{encrypted} send-proxy-v2"),
        }
        stack.enter_context(haproxy(directory / "haproxy", frontends))
        trust = ssl.create_default_context(cafile=authority.cert)
        yield Place(weir, plain, encrypted, ports, trust, directory / "ledger")


def is_served(place: Place, way: str, ip: str) -> bool:
    """Return True if a new connection gets an answer, and False if the gateway closes it."""
    try:
        with place.connection(way, ip) as client:
            ask(client)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("way", WAYS)
def test_limits_log_and_ledger_have_the_clients_address(place: Place, way: str) -> None:
    alice, bob = f"{WAYS[way]}.2", f"{WAYS[way]}.3"
    before = place.rejected("max_per_ip")
    with ExitStack() as stack:
        first, second, of_bob = (stack.enter_context(place.connection(way, ip)) for ip in (alice, alice, bob))
        for client in (first, second, of_bob):
            ask(client)
        assert not is_served(place, way, alice)
        assert place.rejected("max_per_ip") == before + 1
        of_bob.sendall(m.produce(1, size=100_000))
        expected = {(ConnectionRejected, alice), (ThrottleEvent, bob)}

        def written() -> bool:
            events = flushed(place.ledger)
            return expected <= {(type(each), getattr(each, "address", None)) for each in events}

        wait_until(written, "both addresses are in the ledger")

    def refused(ip: str) -> int:
        return sum(event["peer"].startswith(f"{ip}:") for event in place.gateway.logged(reason="max_per_ip"))

    wait_until(lambda: refused(alice), "the refusal is in the log")
    assert (refused(alice), refused(BALANCER)) == (1, 0)


def test_connections_are_listed_with_clients_addresses(place: Place) -> None:
    with ExitStack() as stack:
        expected = set()
        for way, listener in (("v1", "clients"), ("v2", "clients"), ("v2ssl", "clients"), ("tls", "encrypted")):
            for ip in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                client = stack.enter_context(place.connection(way, ip))
                ask(client)
                expected.add((listener, "{}:{}".format(*client.getsockname())))
        listed = {(row["listener"], row["address"]) for row in place.gateway.api("connections?limit=1000")["rows"]}
    assert expected <= listed


def test_headers_and_health_checks_are_counted(place: Place) -> None:
    assert is_served(place, "v1", STRANGER)
    assert is_served(place, "v2", STRANGER)
    wait_until(lambda: place.gateway.metric("weir_proxy_headers_total", header="local") > 2, "health checks have come")
    assert place.gateway.metric("weir_proxy_headers_total", header="v1") >= 1
    assert place.gateway.metric("weir_proxy_headers_total", header="v2") >= 1


@pytest.mark.parametrize("sent", [b"", line("TCP4 192.0.2.7 10.0.0.9 1 2"), binary(IPV4, IPV4, 1, 2)], ids=["none", "v1", "v2"])
def test_stranger_is_refused_where_required(place: Place, sent: bytes) -> None:
    before = place.rejected("proxy_header_untrusted")
    with open_from(STRANGER, (HOST, place.plain)) as client:
        client.sendall(sent)
        assert closes(client)
    assert place.rejected("proxy_header_untrusted") == before + 1


def test_header_from_a_stranger_is_refused_where_allowed(place: Place) -> None:
    before = place.rejected("proxy_header_untrusted")
    with open_from("127.0.0.5", (HOST, place.encrypted)) as client:
        client.sendall(line("TCP4 192.0.2.7 10.0.0.9 1 2"))
        assert closes(client)
    assert place.rejected("proxy_header_untrusted") == before + 1
    logged = place.gateway.logged("listeners[encrypted].proxy_protocol.trusted does not have its address")
    assert [event["peer"].partition(":")[0] for event in logged] == ["127.0.0.5"]


@pytest.mark.parametrize("ip", [STRANGER, BALANCER])
def test_client_without_header_is_served_where_allowed(place: Place, ip: str) -> None:
    with (
        open_from(ip, (HOST, place.encrypted)) as client,
        place.trust.wrap_socket(client, server_hostname="localhost") as encrypted,
    ):
        ask(encrypted)


def test_balancer_without_header_is_refused_where_required(place: Place) -> None:
    before = place.rejected("proxy_header_missing")
    with open_from(BALANCER, (HOST, place.plain)) as client:
        client.sendall(m.metadata(1))
        assert closes(client)
    assert place.rejected("proxy_header_missing") == before + 1
    (logged,) = place.gateway.logged(reason="proxy_header_missing")
    assert "send-proxy-v2" in logged["msg"]


def test_second_header_is_a_bad_frame(place: Place) -> None:
    header = line("TCP4 192.0.2.7 10.0.0.9 1 2")
    with open_from(BALANCER, (HOST, place.plain)) as client:
        client.sendall(header + header)
        assert closes(client)
    assert place.gateway.metric("weir_protocol_errors_total", reason="proxy_header") == 1
    (logged,) = place.gateway.logged(reason="proxy_header")
    assert logged["peer"] == "192.0.2.7:1"


def test_thousand_half_headers_are_cut_and_hinder_nobody(place: Place) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    before = place.rejected("proxy_header_timeout")
    with ExitStack() as stack:
        halves = []
        for number in range(HALF_HEADERS):
            halves.append(stack.enter_context(open_from(BALANCER, (HOST, place.plain))))
            halves[-1].sendall(binary(IPV4, IPV4, 1, 2)[:27])
            if number % 50 == 0:
                assert is_served(place, "v2", STRANGER)
        assert all(map(closes, halves))
    assert place.rejected("proxy_header_timeout") == before + HALF_HEADERS
    assert is_served(place, "v2", STRANGER)
