"""Handshakes with local sockets: limits and counters."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import cast

import pytest

from gateway.config.problems import ConfigError
from gateway.proxy.counters import Counters
from gateway.proxy.tls import handshakes as module
from gateway.proxy.tls.contexts import LiveContext, ServerTls, server_context
from gateway.proxy.tls.handshakes import Handshakes, server_name
from gateway.proxy.tls.tls_transport import TlsTransport
from loadtest.testkit.certificates import LOOPBACK, Authority


class Noting(asyncio.Protocol):
    """The protocol behind a handshake. Notes its transports, and echoes."""

    def __init__(self, made: list[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._made.append(self._transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Port:
    """A port whose connections begin with a handshake."""

    def __init__(
        self, authority: Authority, seconds: float = 20.0, client_auth: str = "none", names: Container[str | None] | None = None
    ) -> None:
        files = authority.issue("server", LOOPBACK)
        ca = None if client_auth == "none" else authority.cert
        tls = ServerTls(files.cert, files.key, ca, client_auth, "1.2")
        live = LiveContext("tls", tls, lambda: server_context(tls, None if names is None else names.__contains__), {})
        self.counts = Counters()
        self.handshakes = Handshakes("clients", live, seconds, self.counts)
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.made: list[asyncio.Transport] = []
        self.released = 0
        self._releases: asyncio.Queue[None] = asyncio.Queue()

    async def accept(self) -> socket.socket:
        """Return a client's socket, after the server's handshake with it has begun."""
        client = socket.create_connection(self.bound.getsockname())
        client.setblocking(False)
        connection, _ = self.bound.accept()
        protocol = self.handshakes.begin(client.getsockname(), lambda: Noting(self.made), self._released)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
        return client

    def begin(self, address: str) -> TlsTransport:
        """A handshake with a client at that address, which never sends a byte."""
        return self.handshakes.begin((address, 1), lambda: Noting(self.made), self._released)

    def _released(self) -> None:
        self.released += 1
        self._releases.put_nowait(None)

    async def until_released(self, number: int) -> None:
        while self.released < number:
            await self._releases.get()

    def close(self) -> None:
        self.bound.close()
        for transport in self.made:
            transport.abort()


async def test_handshake_reports_server_name_and_certificate(authority: Authority) -> None:
    port = Port(authority, client_auth="required", names={"localhost"})
    mine = authority.issue("me")
    tls = ssl.create_default_context(cafile=authority.cert)
    tls.load_cert_chain(mine.cert, mine.key)
    client = await port.accept()
    reader, writer = await asyncio.open_connection(sock=client, ssl=tls, server_hostname="LOCALHOST")
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    (transport,) = port.made
    connection = transport.get_extra_info("ssl_object")
    assert server_name(connection) == "localhost"
    assert connection.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(mine.cert.read_text())
    assert (port.handshakes.in_progress, port.counts.handshakes, port.counts.handshake_failures) == (0, 0, {})
    writer.transport.abort()
    port.close()
    await asyncio.sleep(0)
    assert port.released == 0


async def test_silent_client_is_cut_after_time_limit(authority: Authority) -> None:
    port = Port(authority, seconds=0.05)
    client = await port.accept()
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    await port.until_released(1)
    assert port.counts.handshake_failures == {"timeout": 1}
    client.close()
    port.close()


async def test_each_silent_client_is_cut(authority: Authority) -> None:
    """One timer serves all of them."""
    port = Port(authority, seconds=0.05)
    clients = [await port.accept() for _ in range(3)]
    await port.until_released(3)
    late = await port.accept()
    await port.until_released(4)
    assert port.counts.handshake_failures == {"timeout": 4}
    for client in (*clients, late):
        client.close()
    port.close()


async def test_excess_handshake_evicts_oldest_of_busiest_address(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 3)
    port = Port(authority)
    clients = [await port.accept() for _ in range(4)]
    assert port.counts.handshakes == 3
    assert await asyncio.get_running_loop().sock_recv(clients[0], 1) == b""
    await port.until_released(1)
    assert port.counts.handshake_failures == {"crowded_out": 1}
    for client in clients:
        client.close()
    await port.until_released(4)
    assert port.counts.handshakes == 0
    assert port.counts.handshake_failures == {"crowded_out": 1, "closed": 3}
    port.close()


async def test_crowd_of_an_ipv6_network_evicts_its_own_handshakes(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 5)
    port = Port(authority)
    crowd = [port.begin(f"2001:db8::{number}") for number in range(3)]
    others = [port.begin("2001:db8:0:1::7") for _ in range(2)]
    port.begin("2001:db8::3")
    assert [each.connecting for each in (*crowd, *others)] == [False, True, True, True, True]
    port.handshakes.close()
    port.close()


@pytest.mark.parametrize("crowded", [True, False])
async def test_handshake_is_cut_before_its_transport_exists(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, crowded: bool
) -> None:
    """asyncio makes the transport of an accepted socket a turn later."""
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 1)
    port = Port(authority)
    accepting = asyncio.create_task(port.accept())
    await asyncio.sleep(0)
    clients = []
    if crowded:
        clients.append(await port.accept())
    else:
        port.handshakes.close()
    client = await accepting
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    await port.until_released(1)
    assert port.counts.handshake_failures == ({"crowded_out": 1} if crowded else {})
    port.handshakes.close()
    await port.until_released(1 + crowded)
    for each in (client, *clients):
        each.close()
    port.close()


async def test_plaintext_is_recognized(authority: Authority) -> None:
    port = Port(authority)
    client = await port.accept()
    await asyncio.get_running_loop().sock_sendall(client, b"\0\0\0\x14\0\x12\0\x03\0\0\0\1\0\4abcd\0\0\0\0")
    await port.until_released(1)
    assert port.counts.handshake_failures == {"not_tls": 1}
    client.close()
    port.close()


async def test_large_key_share_is_refused_with_an_alert(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    tls = ssl.create_default_context(cafile=authority.cert)
    try:
        tls.set_ecdh_curve("ffdhe3072")
    except ssl.SSLError:
        pytest.skip("this Python can name elliptic curves only (Debian 12's 3.11.2)")
    port = Port(authority)
    client = await port.accept()
    with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
        await asyncio.open_connection(sock=client, ssl=tls, server_hostname="localhost")
    await port.until_released(1)
    assert port.counts.handshake_failures == {"key_share": 1}
    assert "the client's ClientHello has a key share of ffdhe3072" in caplog.text
    port.close()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("Other.Example.COM", "the client asked for 'other.example.com' (SNI), but no broker has that name"),
        (None, "the client sent no valid server name (SNI), which selects the broker"),
    ],
)
async def test_refused_server_name_is_named(
    authority: Authority, caplog: pytest.LogCaptureFixture, asked: str | None, words: str
) -> None:
    port = Port(authority, names={"localhost"})
    tls = ssl.create_default_context(cafile=authority.cert)
    tls.check_hostname = False
    client = await port.accept()
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        await asyncio.open_connection(sock=client, ssl=tls, server_hostname=asked or "")
    await port.until_released(1)
    assert port.counts.handshake_failures == {"server_name": 1}
    assert words in caplog.text
    port.close()


async def test_close_ends_handshakes_without_a_failure(authority: Authority) -> None:
    port = Port(authority)
    client = await port.accept()
    port.handshakes.close()
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    await port.until_released(1)
    assert (port.counts.handshakes, port.counts.handshake_failures) == (0, {})
    client.close()
    port.close()


def test_context_reloads_complete_files(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.issue("first", LOOPBACK), authority.issue("second", LOOPBACK)
    tls = ServerTls(files.cert, files.key, None, "none", "1.2")
    results: Counter[str] = Counter()
    live = LiveContext("tls", tls, lambda: server_context(tls), results)
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
    assert (live.context, results) == (second, {"success": 1, "failure": 2})
    files.cert.write_bytes(other_cert)
    for _ in range(3):
        live.refresh()
    assert results == {"success": 2, "failure": 2}


def test_files_replaced_during_the_start_are_named(authority: Authority) -> None:
    """The check of the config has found usable files a moment ago."""
    files, other = authority.issue("first", LOOPBACK), authority.issue("second", LOOPBACK)
    tls = ServerTls(other.cert, files.key, None, "none", "1.2")
    with pytest.raises(ConfigError, match=r"tls: its files have changed during the start.*key values mismatch"):
        LiveContext("tls", tls, lambda: server_context(tls), {})


def test_files_that_become_usable_are_loaded(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Also without a change of the files, such as after a lack of file descriptors."""
    files = authority.issue("first", LOOPBACK)
    tls = ServerTls(files.cert, files.key, None, "none", "1.2")
    usable, results = True, Counter[str]()

    def make() -> ssl.SSLContext:
        if not usable:
            raise PermissionError(13, "Permission denied")
        return server_context(tls)

    live = LiveContext("tls", tls, make, results)
    files.cert.chmod(0o400)
    usable = False
    for _ in range(4):
        live.refresh()
    assert (results, len(caplog.records)) == ({"failure": 3}, 1)
    files.cert.chmod(0o440)
    for _ in range(2):
        live.refresh()
    assert (results, len(caplog.records)) == ({"failure": 4}, 2), "a new try is seen in the log"
    usable = True
    live.refresh()
    assert results == {"failure": 4, "success": 1}
