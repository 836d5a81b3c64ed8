"""An operator clears a debt, but only from the gateway's own host."""

import http.client
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests.gateway.proxy import messages as m
from tests.hostile.raw_client import RawClient
from tests.weir_process import Weir, wait_until

QUOTAS = {"entities": [{"client-id": "etl", "producer_byte_rate": 1024}]}


def forgive(weir: Weir, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "quotas", "forgive", "--admin", weir.admin, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def connected(weir: Weir, connect: Callable[..., RawClient]) -> RawClient | None:
    try:
        return connect(weir)
    except ConnectionRefusedError:
        return None


@pytest.mark.parametrize("workers", [1, 2])
def test_forgiven_client_goes_on_at_once(workers, broker, start_weir, connect):
    sharing = {"workers": workers} if workers > 1 else {}
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS, wait="/livez", **sharing)
    client = wait_until(lambda: connected(weir, connect), "a worker listens")
    client.ask(m.produce(1, size=1_000_000))
    client.send(m.produce(2))
    wait_until(lambda: weir.metric("weir_muted_connections") == 1, "the client is muted")
    done = forgive(weir, "--client-id", "etl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "s of produce for client-id etl" in done.stdout
    assert client.receive()[4:8] == (2).to_bytes(4, "big")


def test_forgive_reports_a_client_without_debt(broker, start_weir):
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    done = forgive(weir, "--user", "nobody")
    assert done.returncode == 0
    assert "nothing to clear" in done.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_unknown_group_is_no_group_without_debt(workers, broker, start_weir, connect):
    sharing = {"workers": workers} if workers > 1 else {}
    groups = [{"name": "jobs", "match": [{"client-id": "j-*"}], "producer_byte_rate": 1024}]
    weir = start_weir(broker.bootstrap_servers, quotas={"groups": groups}, wait="/livez", **sharing)
    wait_until(lambda: connected(weir, connect), "a worker listens")
    unknown = forgive(weir, "--group", "job")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "group: there is no 'job' in quotas.groups: use one of jobs\n" in unknown.stderr
    known = forgive(weir, "--group", "jobs")
    assert (known.returncode, known.stderr) == (0, "")
    assert "nothing to clear" in known.stdout


def test_debt_in_the_overflow_bucket_is_cleared(broker, start_weir, connect):
    entities = [{"client-id": "<default>", "producer_byte_rate": 1024}]
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": entities, "max_entities": 1})
    connect(weir).ask(m.produce(1, client_id="first"))
    connect(weir).ask(m.produce(1, size=1_000_000, client_id="\x1b[31msecond"))
    newcomer = connect(weir)
    newcomer.send(m.produce(2, client_id="third"))
    wait_until(lambda: weir.metric("weir_quota_overflowed_total") == 2, "two clients share a bucket")
    done = forgive(weir, "--client-id", "<other>")
    assert "s of produce for the shared bucket <other> of client-id=<default>" in done.stdout
    assert newcomer.receive()[4:8] == (2).to_bytes(4, "big")


def test_control_characters_reach_no_terminal(broker, start_weir, connect):
    entities = [{"client-id": "<default>", "producer_byte_rate": 1024}]
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": entities})
    connect(weir).ask(m.produce(1, size=1_000_000, client_id="\x1b]0;mine\x07"))
    done = forgive(weir, "--client-id", "\x1b]0;mine\x07")
    assert "\\x1b]0;mine\\x07" in done.stdout


@pytest.mark.parametrize(
    ("body", "status"), [(b'{"client-id": "nobody"}', 200), (b"[" * 100_000, 400)], ids=["in parts", "nested"]
)
def test_odd_body_gets_answer(body, status, broker, start_weir):
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    address, _, port = weir.admin.removeprefix("http://").rpartition(":")
    head = "POST /api/quotas/forgive HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        time.sleep(0.2)  # the gateway reads the first part separately
        connection.sendall(body[5:])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
    assert answer.status == status
    assert "Traceback" not in weir.log()


def test_web_page_cannot_clear_debts(broker, start_weir):
    """Browsers let a page of another site send plain text without a preflight request, but no JSON."""
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    request = urllib.request.Request(
        weir.admin + "/api/quotas/forgive", b'{"client-id": "etl"}', {"Content-Type": "text/plain"}
    )
    with pytest.raises(urllib.error.HTTPError, match="415") as refused:
        urllib.request.urlopen(request)
    refused.value.close()


def test_reset_connection_clears_no_debt(broker, start_weir, connect):
    """Its peer's address is no longer known when the gateway reads the request, so it may be another machine's."""
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    connect(weir).ask(m.produce(1, size=1_000_000))
    address, _, port = weir.admin.removeprefix("http://").rpartition(":")
    body = b'{"client-id": "etl"}'
    head = "POST /api/quotas/forgive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    weir.process.send_signal(signal.SIGSTOP)
    with socket.create_connection((address, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    weir.process.send_signal(signal.SIGCONT)
    wait_until(lambda: weir.get("/livez"), "the gateway has taken the request before this one")
    assert "s of produce for client-id etl" in forgive(weir, "--client-id", "etl").stdout
