"""The addresses that clients connect to: one to begin with, and one for each broker."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import cast

from gateway.cluster.acceptor import Acceptor
from gateway.cluster.admission import Admission
from gateway.cluster.brokers import Address, Brokers
from gateway.config import ListenerConfig
from gateway.quotas.engine import QuotaEngine
from gateway.session.context import SessionContext
from gateway.session.counters import Counters
from gateway.session.exchange import Opener
from gateway.session.gate import ProduceGate
from gateway.session.io import Dial, Session, SessionHost
from gateway.session.sessions import Sessions

BACKLOG = 1024

_log = logging.getLogger("weir.cluster")


class BindError(Exception):
    """An address that clients are to connect to can't be bound."""


class Listener:
    """One entry of `listeners` in the config file.

    A broker's port is bound the moment that the broker is first heard of, so that no client is told a port on which nobody
    listens.
    """

    def __init__(
        self,
        config: ListenerConfig,
        brokers: Brokers,
        engine: QuotaEngine,
        counters: Counters,
        sessions: Sessions,
        admission: Admission,
        max_frame_bytes: int,
        openers: dict[int, Opener],
        gate: ProduceGate,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._sessions = sessions
        self._admission = admission
        self._context = SessionContext(engine, counters, self.translate, max_frame_bytes, openers, gate)
        self._ports: dict[int, int] = {}
        self._acceptors: list[Acceptor] = []
        self._closed = False
        brokers.on_new(self._open_broker_port)

    async def start(self) -> None:
        """Bind the bootstrap port and serve. Raises BindError."""
        port = self._config.bootstrap_port
        try:
            bound = self._bind(port)
        except OSError as error:
            raise BindError(
                f"listeners[{self._config.name}].bootstrap_port: {self._config.host}:{port} can't be bound: {error.strerror}"
                " — stop what listens there, or choose another port"
            ) from error
        self._serve(bound, self._dial_anyone, "the bootstrap broker")

    def translate(self, node_id: int, host: str, port: int) -> Address | None:
        """What clients of this listener are told instead of a broker's own address; None: nothing, for want of a port."""
        self._brokers.learn(node_id, host, port)
        mine = self._ports.get(node_id)
        return None if mine is None else (self._config.advertised_host, mine)

    def limit_frames(self, max_bytes: int) -> None:
        """Requests of connections from now on may be so long."""
        self._context.max_frame_bytes = max_bytes

    async def close(self) -> None:
        """Accept nobody any more; open sessions go on."""
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.close()

    def _open_broker_port(self, node_id: int) -> None:
        if self._closed:
            return
        ports = self._config.broker_ports.ports
        taken = set(self._ports.values())
        # The first port plus the node id, so that it stays the same over restarts; the next free one where that is taken.
        begin = node_id % len(ports)
        for port in chain(ports[begin:], ports[:begin]):
            if port in taken:
                continue
            try:
                bound = self._bind(port)
            except OSError as error:
                _log.warning(
                    "listener %s: port %d, meant for broker %d, can't be bound: %s; trying the next of broker_ports",
                    self._config.name, port, node_id, error.strerror, extra={"broker": node_id},
                )  # fmt: skip
                continue
            self._ports[node_id] = port
            _log.info(
                "listener %s: clients reach broker %d at %s:%d",
                self._config.name, node_id, self._config.advertised_host, port, extra={"broker": node_id},
            )  # fmt: skip
            self._serve(bound, partial(self._dial_broker, node_id), f"broker {node_id}")
            return
        _log.error(
            "listener %s: no port of broker_ports %s is left for broker %d, clients won't be told of it: widen broker_ports",
            self._config.name, self._config.broker_ports, node_id, extra={"broker": node_id},
        )  # fmt: skip

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._config.host else socket.AF_INET
        bound = socket.create_server((self._config.host, port), family=family, backlog=BACKLOG, reuse_port=False)
        bound.setblocking(False)
        return bound

    def _serve(self, bound: socket.socket, dial: Dial, broker: str) -> None:
        host = SessionHost(self._context, self._sessions, dial, broker)
        acceptor = Acceptor(
            bound, lambda slot: cast("asyncio.Protocol", Session(host, slot)), self._admission, self._config.name
        )
        acceptor.start()
        self._acceptors.append(acceptor)

    async def _dial_broker(self, node_id: int, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        return await _connect(self._brokers.address(node_id), protocol)

    async def _dial_anyone(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        failures: list[str] = []
        for address in self._brokers.anyone():
            try:
                return await _connect(address, protocol)
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        raise OSError("; ".join(failures))


async def _connect(address: Address, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
    transport, _ = await asyncio.get_running_loop().create_connection(protocol, *address)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport
