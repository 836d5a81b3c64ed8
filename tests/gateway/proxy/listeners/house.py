"""An acceptor of echo connections on a real port, with real connection quotas."""

import asyncio
import socket

from gateway.features.connection_quotas.admission import ConnectionAdmission
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.proxy.listeners.acceptor import Acceptor
from gateway.proxy.listeners.proxy_headers import ProxyHeaders
from gateway.proxy.poller import Poller
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings

SHORT = Window(2, 1.0)
"""The burst is one second."""


class Echo(asyncio.Protocol):
    """A connection that echoes its input."""

    def __init__(self, slot, client, made):
        self._slot = slot
        self._made = made
        self.client = client

    def connection_made(self, transport):
        self.transport = transport
        self._made.append(self)

    def data_received(self, data):
        self.transport.write(data)

    def connection_lost(self, exc):
        self._slot.release()


class House:
    """An acceptor for echo connections on a local port, with its dependencies."""

    def __init__(
        self, bound, *, own=False, ip_rate=None, window=SHORT, max_per_ip=1_000, max_held=100, tls=None, proxy=None, **listener
    ):
        quota = EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": ip_rate})
        # The burst is the rate over all samples but one. A connection over the rate is held for at most one sample.
        engine = QuotaEngine(QuotaSettings((quota,) if ip_rate else (), window=window), 0.0)
        self.counters = Counters()
        self.quotas = ConnectionQuotas(
            engine, ConnectionLimits(max_per_ip, listeners={"clients": AcceptLimits(**listener)}), 0.0
        )
        outlet = Outlet("", [self.counters])
        self.admission = ConnectionAdmission(self.quotas, outlet, max_held=max_held)
        headers = None if proxy is None else ProxyHeaders("clients", proxy, self.counters, outlet)
        self.made = []
        self._clients = []
        self.address = bound.getsockname()
        self._poller = Poller() if own else None
        self._tls, self._headers = tls, headers
        self._acceptors = []
        self.acceptor = self.open_port(bound)

    def open_port(self, bound):
        """Open one more port of the listener. The caller starts the returned acceptor."""
        acceptor = Acceptor(
            bound,
            lambda slot, client: Echo(slot, client, self.made),
            self.admission,
            "clients",
            tls=self._tls,
            headers=self._headers,
            poller=self._poller,
        )
        self._acceptors.append(acceptor)
        return acceptor

    async def connect(self, source="", to=None):
        """Connect to the kernel's queue, accepted or not."""
        client = socket.socket()
        client.setblocking(False)
        client.bind((source, 0))
        try:
            await asyncio.get_running_loop().sock_connect(client, to or self.address)
        except OSError:
            client.close()
            raise
        self._clients.append(client)
        return client

    def left(self):
        """Return an event that is set when the next connection gives its place back."""
        left = asyncio.Event()
        self.quotas.on_release(left.set)
        return left

    async def close(self):
        for acceptor in self._acceptors:
            acceptor.close()
        self.admission.close()
        for each in self.made:
            each.transport.abort()
        for client in self._clients:
            client.close()
        if self._poller is not None:
            await asyncio.sleep(0)  # the ends of the connections that are aborted
            self._poller.close()
        await asyncio.sleep(0)


async def ask(client, text=b"hello"):
    """Return the echo of an admitted connection, or nothing from a closed one."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(client, text)
        return await loop.sock_recv(client, len(text))
    except ConnectionError:
        return b""
