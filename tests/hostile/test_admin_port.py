"""The admin port under hostile use: foreign Host headers (DNS rebinding) and many scrapes at once."""

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway.proxy import messages as m
from tests.weir_process import Weir, wait_until

ENTITIES = 1_000
SCRAPES = 30

PAGES = ["/", "/metrics", "/api/config", "/api/quotas", "/api/throttles", "/api/facts", "/api/stream"]
PAGES += ["/entities?user=a", "/api/entities?user=a", "/api/explain?user=a", "/api/active"]


def ask(weir: Weir, path: str, host: str | None) -> tuple[int, str]:
    """Return the status and the body of a page. A `host` of None sends no Host header, as HTTP/1.0 may."""
    address, _, port = weir.admin.removeprefix("http://").rpartition(":")
    head = f"GET {path} HTTP/1.0\r\n" if host is None else f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    with socket.create_connection((address, int(port)), timeout=30) as connection:
        connection.sendall(f"{head}\r\n".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read().decode()


@pytest.fixture
def busy(broker, start_weir, connect) -> Weir:
    """A gateway with 1000 entities."""
    entities = [{"client-id": "<default>", "producer_byte_rate": 1_000_000}]
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": entities})
    client = connect(weir)
    client.send(*(m.produce(number, client_id=f"app-{number}") for number in range(ENTITIES)))
    for _ in range(ENTITIES):
        client.receive()
    return weir


def test_foreign_host_reads_no_admin_page(broker, start_weir):
    weir = start_weir(broker.bootstrap_servers)
    port = weir.admin.rpartition(":")[2]
    for path in PAGES:
        for host in (f"rebound.example:{port}", "localhost.rebound.example", "127.0.0.1.rebound.example", "app"):
            status, body = ask(weir, path, host)
            assert status == 421, (path, host)
            assert host in body
            assert "admin.allowed_hosts" in body
            assert "bootstrap_servers" not in body
    own = [
        None,
        "localhost",
        "LOCALHOST.",
        f"localhost:{port}",
        "127.0.0.1",
        f"[::1]:{port}",
        "10.1.2.3:80",
        socket.gethostname(),
    ]
    for host in own:
        assert ask(weir, "/api/config", host)[0] == 200, host


def test_allowed_hosts_change_without_restart(broker, start_weir):
    weir = start_weir(broker.bootstrap_servers)
    port = weir.admin.rpartition(":")[2]
    weir.config["admin"]["allowed_hosts"] = ["weir.example.com", ".corp.example"]
    weir.write_config(weir.config)
    weir.reload()
    wait_until(lambda: ask(weir, "/api/config", "weir.example.com")[0] == 200, "the new name is allowed")
    for host in (f"WEIR.example.com:{port}", "corp.example", "gw-1.corp.example:80"):
        assert ask(weir, "/api/config", host)[0] == 200, host
    assert ask(weir, "/api/config", "gw-1.weir.example.com")[0] == 421


def test_foreign_host_gets_probe_status_only(broker, start_weir):
    weir = start_weir(broker.bootstrap_servers)
    assert ask(weir, "/readyz", "balancer.example") == (200, "")
    assert ask(weir, "/livez", "balancer.example") == (200, "")


BAD_REQUESTS = {
    "no host": "GET / HTTP/1.1\r\n\r\n",
    "two hosts": "GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    "not compressed": "POST /api/quotas/forgive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_do_not_fill_the_log(case, broker, start_weir):
    weir = start_weir(broker.bootstrap_servers)
    address, _, port = weir.admin.removeprefix("http://").rpartition(":")
    for _ in range(20):
        with socket.create_connection((address, int(port)), timeout=30) as connection:
            connection.sendall(BAD_REQUESTS[case].encode())
            assert connection.recv(1024).startswith(b"HTTP/1.")
    levels = [event["level"] for event in weir.logged("admin request refused")]
    assert set(levels) == {"warning"}
    assert len(levels) <= 2  # aiohttp logs some requests twice
    assert "Traceback" not in weir.log()


def test_parallel_scrapes_cost_a_few(busy, connect):
    begun = busy.cpu_seconds()
    for _ in range(3):
        busy.get("/metrics")
    one = (busy.cpu_seconds() - begun) / 3
    begun = busy.cpu_seconds()
    with ThreadPoolExecutor(SCRAPES) as pool:
        pages = list(pool.map(lambda _: busy.get("/metrics"), range(SCRAPES)))
    cost = busy.cpu_seconds() - begun
    assert all(f'client_id="app-{number}"' in page for page in pages for number in (0, ENTITIES - 1))
    assert cost < one * SCRAPES / 3, f"{SCRAPES} scrapes took {cost:.2f} s of CPU, one takes {one:.2f} s"


def test_scrape_shows_what_came_before_it(broker, start_weir, connect):
    """A shared page is never older than the request for it."""
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    for number in range(5):
        client.ask(m.produce(number))
        assert weir.metric("weir_requests_total", api="Produce") == number + 1
