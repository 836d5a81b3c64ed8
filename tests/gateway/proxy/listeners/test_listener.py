"""Really bound ports of brokers."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway import binding
from gateway.binding import bind_bootstrap_port
from gateway.cluster.brokers import Brokers
from gateway.cluster.upstream import Upstream
from gateway.config.load import parse_config
from gateway.features.connection_quotas.admission import ConnectionAdmission
from gateway.features.connection_quotas.config import connection_limits
from gateway.features.connection_quotas.rules import ConnectionQuotas
from gateway.observer import Outlet
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.listeners.listener import Listener
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sessions import Sessions
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from loadtest.testkit.certificates import LOOPBACK, Authority
from loadtest.testkit.kafka import free_port_range

PORTS = 3


@pytest.fixture
def first() -> int:
    """The first broker port."""
    return free_port_range(1 + PORTS) + 1


@pytest.fixture
def tls() -> str:
    """The listener's keys for TLS."""
    return ""


@pytest.fixture
async def worker(tmp_path: Path, first: int, tls: str, claims: int) -> AsyncIterator[Callable[[], Listener]]:
    """A factory of workers' listeners."""
    text = f"""
upstream: {{bootstrap_servers: ["127.0.0.1:9092"]}}
listeners: [{{name: clients, bootstrap_port: {first - 1}, broker_ports: {first}-{first + PORTS - 1}{tls}}}]
"""
    config = parse_config(text, source="weir.yaml")
    with ExitStack() as running:

        def make() -> Listener:
            counters, engine, brokers = Counters(), QuotaEngine(QuotaSettings(()), 0.0), Brokers([("127.0.0.1", 9092)])
            quotas = ConnectionQuotas(engine, connection_limits(config.connections, config.listeners), 0.0)
            listener = Listener(
                config.listeners[0],
                tmp_path,
                Upstream(config.upstream, tmp_path, brokers, counters),
                counters,
                Sessions(counters, Outlet(), max_idle_seconds=60.0),
                ConnectionAdmission(quotas, Outlet()),
                lambda translate: SessionContext(engine, counters, translate, 1_000, {}, ProduceGate(), None),
                PortClaims(claims),
            )
            running.callback(listener.close)
            return listener

        yield make


def forget(listener: Listener, node_id: int, live: dict[int, tuple[str, int]] | None = None) -> None:
    """Let the listener's gateway forget a broker that the cluster's metadata lacks. `live` are the brokers that it has."""
    brokers = listener._brokers
    for now in range(0, 1_000, 10):
        brokers.learn_live(live or {}, float(now))
    brokers.forget(node_id)


def advertised(listener: Listener, node_id: int) -> int | None:
    """Return the port of a broker in addresses for clients."""
    address = listener.translate(node_id, "kafka.example.com", 9092)
    return None if address is None else address[1]


async def test_workers_use_same_port_for_a_broker(worker: Callable[[], Listener], first: int) -> None:
    one, other = worker(), worker()
    assert [advertised(listener, 1) for listener in (one, other, one)] == [first + 1] * 3
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", first + 1))


async def test_port_of_another_weir_is_skipped(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", first + 1), reuse_port=True):
        one = worker()
        assert advertised(one, 1) == first + 2
    assert f"port {first + 1}, meant for broker 1, can't be bound" in caplog.text
    other = worker()
    assert advertised(other, 1) == first + 2, "also once it is free"


async def test_port_of_another_program_is_not_blamed_on_the_range(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", first + 1), reuse_port=True):
        one = worker()
        assert [advertised(one, 1), advertised(one, 2)] == [first + 2, first]
    assert "has ports of other programs: port" in caplog.text
    assert "end those programs, or choose another range" in caplog.text
    assert "too narrow" not in caplog.text


async def test_listener_without_any_broker_port_is_unusable(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = worker()
    with ExitStack() as programs:
        for port in range(first, first + PORTS):
            programs.enter_context(socket.create_server(("127.0.0.1", port), reuse_port=True))
        assert advertised(one, 1) is None
    assert one.unusable is not None
    assert f"no port of broker_ports {first}-{first + PORTS - 1} can be bound" in one.unusable
    assert "widen broker_ports" in caplog.text


async def test_broker_ids_that_share_a_port_warn_with_remedy(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = worker()
    assert [advertised(one, 1), advertised(one, 2)] == [first + 1, first + 2]
    assert "is too narrow" not in caplog.text
    assert advertised(one, 1 + PORTS) == first
    assert f"port {first + 1} is that of broker 1 and of broker 4, which gets port {first} now" in caplog.text
    assert "widen broker_ports to 4 ports or more" in caplog.text


async def test_forgotten_brokers_port_is_free_for_another(worker: Callable[[], Listener], first: int) -> None:
    one = worker()
    assert [advertised(one, 1), advertised(one, 1 + PORTS)] == [first + 1, first + 2]
    forget(one, 1, {1 + PORTS: ("kafka.example.com", 9092)})
    assert advertised(one, 1 + 2 * PORTS) == first + 1
    assert advertised(one, 1 + PORTS) == first + 2, "a live broker keeps its port"


async def test_port_stays_while_another_worker_serves_it(worker: Callable[[], Listener], first: int) -> None:
    one, other = worker(), worker()
    assert [advertised(each, 1) for each in (one, other)] == [first + 1] * 2
    forget(one, 1)
    assert advertised(one, 1 + PORTS) == first + 2
    assert advertised(one, 1) == first + 1, "it has come back"
    for each in (one, other):
        forget(each, 1)
    assert advertised(other, 1 + 2 * PORTS) == first + 1


async def test_broker_without_port_gets_one_that_becomes_free(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = worker()
    live = dict.fromkeys(range(10, 10 + PORTS), ("kafka.example.com", 9092))
    assert [advertised(one, node_id) for node_id in range(PORTS)] == [first, first + 1, first + 2]
    one._brokers.learn_live(live, 0.0)
    one.tick()
    counters = one._counters
    assert one.unusable is not None
    assert "can be bound for a live broker" in one.unusable
    assert counters.brokers_without_port == {"clients": PORTS}
    assert "ports of 3 brokers that have gone will be free in 10 minutes" in caplog.text
    forget(one, 0, live)
    one.tick()
    assert one.unusable is None
    assert counters.brokers_without_port == {"clients": PORTS - 1}
    assert advertised(one, 10) == first


@pytest.fixture
def programs(first: int) -> Iterator[list[socket.socket]]:
    """Other programs, one at each broker port."""
    with ExitStack() as running:
        ports = range(first, first + PORTS)
        yield [running.enter_context(socket.create_server(("127.0.0.1", port), reuse_port=True)) for port in ports]


async def test_port_is_used_once_another_program_has_ended(
    worker: Callable[[], Listener], first: int, programs: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = worker(), worker()
    assert [advertised(each, 1) for each in (one, other)] == [None, None]
    one.tick()
    assert advertised(one, 1) is None
    programs[2].close()
    one.tick()
    programs[1].close()
    other.tick()
    assert [advertised(each, 1) for each in (one, other, worker())] == [first + 2] * 3
    assert caplog.text.count(f"port {first + 1}, meant for broker 1, can't be bound") == 1


async def test_port_of_an_ended_program_gets_one_broker(
    worker: Callable[[], Listener], first: int, programs: list[socket.socket]
) -> None:
    one, other = worker(), worker()
    assert [advertised(one, 1), advertised(other, 2)] == [None, None]
    programs[0].close()
    one.tick()
    other.tick()
    assert [advertised(one, 1), advertised(one, 2)] == [first, None]
    assert [advertised(other, 2), advertised(other, 1)] == [None, first]


async def test_port_of_an_ended_program_serves_a_new_broker(
    worker: Callable[[], Listener], first: int, programs: list[socket.socket]
) -> None:
    one = worker()
    assert advertised(one, 1) is None
    programs[1].close()
    assert advertised(one, 2) == first + 1


async def test_tick_tries_each_port_of_other_programs_once(
    worker: Callable[[], Listener], first: int, programs: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker()
    assert [advertised(one, node_id) for node_id in range(10)] == [None] * 10
    tried: list[int] = []

    def bind(_host: str, port: int, *, reuse_port: bool) -> socket.socket:
        tried.append(port)
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr(binding, "listening_socket", bind)
    one._brokers.learn_live(dict.fromkeys(range(10), ("kafka.example.com", 9092)), 0.0)
    one.tick()
    assert sorted(tried) == list(range(first, first + PORTS))


async def test_width_in_warning_is_that_of_live_brokers(
    worker: Callable[[], Listener], first: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = worker()
    assert advertised(one, 1) == first + 1
    one._brokers.learn_live({1 + 100 * PORTS: ("kafka.example.com", 9092)}, 0.0)
    assert advertised(one, 1 + 100 * PORTS) == first + 2
    assert "has ports of brokers that have gone" in caplog.text
    assert "start new brokers 10 minutes after the old ones" in caplog.text
    assert "is too narrow" not in caplog.text


async def test_broker_gets_its_port_once_a_file_is_free(
    worker: Callable[[], Listener],
    first: int,
    limit_files: Callable[[int], None],
    next_file: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = worker()
    limit_files(next_file)
    assert one.translate(1, "10.0.0.1", 9092) is None
    one.tick()
    assert one.translate(1, "10.0.0.1", 9092) is None
    assert one.unusable is not None
    assert "can't be bound: Too many open files" in one.unusable
    assert "LimitNOFILE" in caplog.text
    limit_files(1_024)
    one.tick()
    assert advertised(one, 1) == first + 1
    assert one.unusable is None


@pytest.mark.parametrize("tls", [", tls: {cert: server.pem, key: server.key}"])
async def test_close_ends_handshakes_in_progress(worker: Callable[[], Listener], first: int, tmp_path: Path) -> None:
    Authority(tmp_path).issue("server", LOOPBACK)
    one = worker()
    await one.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", first - 1)
    one.finish()  # accepts the connection
    assert one.starting
    await asyncio.sleep(0)
    assert one.starting
    one.close()
    await asyncio.sleep(0)
    assert one.starting == 0
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    ("level", "option"), [(socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY)]
)
def test_accepted_socket_inherits_option(first: int, level: int, option: int) -> None:
    config = parse_config(
        f"""
upstream: {{bootstrap_servers: ["127.0.0.1:9092"]}}
listeners: [{{name: clients, host: 127.0.0.1, bootstrap_port: {first - 1}, broker_ports: {first}-{first + PORTS - 1}}}]
""",
        source="weir.yaml",
    )
    with bind_bootstrap_port(config.listeners[0], reuse_port=False) as bound, socket.create_connection(bound.getsockname()):
        bound.setblocking(True)
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(level, option) == 1


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_wildcards_of_both_families_share_a_port(first: int) -> None:
    row = f"advertised_host: weir.example.com, bootstrap_port: {first - 1}, broker_ports: {first}-{first + PORTS - 1}"
    config = parse_config(
        f"""
upstream: {{bootstrap_servers: ["kafka:9092"]}}
listeners: [{{name: a, host: 0.0.0.0, {row}}}, {{name: b, host: "::", {row}}}]
""",
        source="weir.yaml",
    )
    four, six = (bind_bootstrap_port(listener, reuse_port=False) for listener in config.listeners)
    with four, six:
        for ip in ("127.0.0.1", "::1"):
            with socket.create_connection((ip, first - 1), timeout=10) as client:
                accepting = six if ":" in ip else four
                accepting.settimeout(10)
                accepted, peer = accepting.accept()
                accepted.close()
                assert peer == client.getsockname()
