"""Handshakes with local sockets: limits and counters."""

import asyncio
import socket
import ssl
from collections import Counter
from pathlib import Path

import pytest

from gateway.proxy.tls import handshakes as module
from gateway.proxy.tls.contexts import LiveContext, ServerTls, server_context
from gateway.proxy.tls.handshakes import Handshakes, client_certificate, server_name
from loadtest.testkit.certificates import LOOPBACK, Authority


class Counts:
    def __init__(self) -> None:
        self.handshakes = 0
        self.handshake_failures: Counter[str] = Counter()


class Port:
    """A port whose connections begin with a handshake."""

    def __init__(self, authority: Authority, seconds: float = 20.0, client_auth: str = "none") -> None:
        files = authority.issue("server", LOOPBACK)
        ca = None if client_auth == "none" else authority.cert
        tls = ServerTls(files.cert, files.key, ca, client_auth, "1.2")
        live = LiveContext("tls", tls.files, lambda: server_context(tls), {})
        self.counts = Counts()
        self.handshakes = Handshakes("clients", live, seconds, self.counts)
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.made: list[asyncio.BaseTransport] = []

    def protocol(self) -> asyncio.Protocol:
        made = self.made

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        return Noting()

    def accept(self) -> tuple[socket.socket, "asyncio.Task[None]"]:
        """Return a client's socket, and the server's handshake with it."""
        client = socket.create_connection(self.bound.getsockname())
        client.setblocking(False)
        connection, _ = self.bound.accept()
        connection.setblocking(False)
        return client, asyncio.create_task(self.handshakes.perform(connection, client.getsockname(), self.protocol))

    def close(self) -> None:
        self.bound.close()
        for transport in self.made:
            transport.abort()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_handshake_reports_server_name_and_certificate(authority: Authority) -> None:
    port = Port(authority, client_auth="required")
    mine = authority.issue("me")
    tls = ssl.create_default_context(cafile=authority.cert)
    tls.load_cert_chain(mine.cert, mine.key)
    client, task = port.accept()
    _, writer = await asyncio.open_connection(sock=client, ssl=tls, server_hostname="LOCALHOST")
    await task
    (transport,) = port.made
    assert server_name(transport) == "localhost"
    assert client_certificate(transport) == ssl.PEM_cert_to_DER_cert(mine.cert.read_text())
    assert (port.counts.handshakes, port.counts.handshake_failures) == (0, {})
    writer.transport.abort()
    port.close()


async def test_silent_client_is_cut_after_time_limit(authority: Authority) -> None:
    port = Port(authority, seconds=0.05)
    client, task = port.accept()
    with pytest.raises(ConnectionAbortedError):
        await task
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    assert port.counts.handshake_failures == {"timeout": 1}
    client.close()
    port.close()


async def test_excess_handshake_evicts_oldest_of_busiest_address(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 3)
    port = Port(authority)
    begun = []
    for _ in range(4):
        begun.append(port.accept())
        await asyncio.sleep(0)
    assert port.counts.handshakes == 3
    with pytest.raises(ConnectionAbortedError, match="crowded out"):
        await begun[0][1]
    assert not any(task.done() for _, task in begun[1:])
    assert port.counts.handshake_failures == {"crowded_out": 1}
    for client, task in begun:
        client.close()
        if client is not begun[0][0]:
            with pytest.raises(ConnectionError):
                await task
    assert port.counts.handshakes == 0
    assert port.counts.handshake_failures == {"crowded_out": 1, "closed": 3}
    port.close()


async def test_plaintext_is_recognized(authority: Authority) -> None:
    port = Port(authority)
    client, task = port.accept()
    await asyncio.get_running_loop().sock_sendall(client, b"\0\0\0\x14\0\x12\0\x03\0\0\0\1\0\4abcd\0\0\0\0")
    with pytest.raises(ssl.SSLError):
        await task
    assert port.counts.handshake_failures == {"not_tls": 1}
    client.close()
    port.close()


def test_context_reloads_complete_files(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.issue("first", LOOPBACK), authority.issue("second", LOOPBACK)
    tls = ServerTls(files.cert, files.key, None, "none", "1.2")
    results: Counter[str] = Counter()
    live = LiveContext("tls", tls.files, lambda: server_context(tls), results)
    first = live.context
    live.refresh()
    assert (live.context, results) == (first, {})

    other_key, other_cert = other.key.read_bytes(), other.cert.read_bytes()
    files.key.write_bytes(other_key)  # half of the new files: noticed, but not used yet
    live.refresh()
    files.cert.write_bytes(other_cert)
    live.refresh()
    assert (live.context, results) == (first, {})
    live.refresh()
    assert results == {"success": 1}
    second = live.context
    assert second is not first

    files.cert.unlink()
    for _ in range(3):
        live.refresh()
    assert (live.context, results) == (second, {"success": 1, "failure": 1})
    files.cert.write_bytes(other_cert)
    for _ in range(3):
        live.refresh()
    assert results == {"success": 2, "failure": 1}
