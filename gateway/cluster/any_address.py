"""Connections to a name with several IP addresses: the first address that accepts, as in Happy Eyeballs (RFC 8305).

uvloop tries the next address only after an error, so one that drops packets would take the whole time of the name.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, TypeVar

from aiokafka.conn import AIOKafkaConnection

from gateway.cluster.brokers import Address

NEXT_ADDRESS_SECONDS = 0.25
"""The next address is tried as well after this time. The attempts before go on, so a slow address keeps the whole time."""

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


async def open_connection(
    protocol: Callable[[], _Protocol], address: Address, context: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, _Protocol]:
    """As `create_connection` of the event loop, at any of the name's IP addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    host, port = address
    if is_ip_address(host):
        return await loop.create_connection(protocol, host, port, ssl=context)
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    resolved = list(dict.fromkeys(str(each[4][0]) for each in found))
    server = None if context is None else host
    if len(resolved) == 1:
        return await loop.create_connection(protocol, resolved[0], port, ssl=context, server_hostname=server)
    connected = await _first_to_accept([(ip, port) for ip in resolved])
    return await loop.create_connection(protocol, sock=connected, ssl=context, server_hostname=server)


async def open_streams(
    address: Address, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`, at any of the name's IP addresses. Raises OSError."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await open_connection(lambda: protocol, address, context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())


def is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _first_to_accept(addresses: Sequence[Address]) -> socket.socket:
    """Connect to all addresses, one after another. Raises OSError with all reasons."""
    rest, errors = list(addresses), dict[str, int | None]()
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while rest or attempts:
            if rest:
                attempts.add(asyncio.create_task(_connected(rest.pop(0))))
            seconds = NEXT_ADDRESS_SECONDS if rest else None
            done, _ = await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                attempts.discard(attempt)
                try:
                    return attempt.result()
                except OSError as error:
                    errors[error.strerror or str(error)] = error.errno
    finally:
        _give_up(attempts)
    raise OSError(next(reversed(errors.values())), "; ".join(errors))


def _give_up(attempts: Iterable[asyncio.Task[socket.socket]]) -> None:
    for attempt in attempts:
        attempt.add_done_callback(_close)  # it may have connected by now
        attempt.cancel()


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that is done. An error of such an attempt counts as seen."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connected(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def create_conn(host: str, port: int, **options: Any) -> AIOKafkaConnection:  # noqa: ANN401 - aiokafka has no types
    """As aiokafka's function of this name, at any of the name's IP addresses. TLS and SASL know the name only."""
    connection = AIOKafkaConnection(host, port, **options)
    if not is_ip_address(host):
        connection._loop = _AnyAddress(connection._loop)
    await connection.connect()
    return connection


class _AnyAddress:
    """The event loop for a connection of aiokafka, which takes neither a connected socket nor another name for TLS."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_connection(
        self, protocol: Callable[[], _Protocol], host: str, port: int, *, ssl: ssl.SSLContext | None
    ) -> tuple[asyncio.Transport, _Protocol]:
        return await open_connection(protocol, (host, port), ssl)
