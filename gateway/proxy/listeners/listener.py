"""The addresses that clients connect to: one to begin with, and one for each broker."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import cast

from gateway.binding import why_not
from gateway.cluster.brokers import Address
from gateway.cluster.upstream import Upstream
from gateway.config.model import ListenerConfig, PortRange
from gateway.proxy.connection import Dial, Session, SessionHost
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.handlers.sasl import AuthenticationGate, SaslObserver
from gateway.proxy.listeners.acceptor import Acceptor
from gateway.proxy.listeners.admission import Admission
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.listeners.tls_acceptor import Arrival, Welcome
from gateway.proxy.sessions import Sessions
from gateway.proxy.tls.contexts import LiveContext, ServerContext, server_context
from gateway.proxy.tls.handshakes import Handshakes
from gateway.proxy.tls.principal import PrincipalMapping
from protocol.bodies.addresses import Translate

BACKLOG = 1024

_log = logging.getLogger("weir.cluster")


class BindError(Exception):
    """An address that clients are to connect to can't be bound."""


class Listener:
    """One entry of `listeners` in the config file.

    A broker's port is bound the moment that the broker is first heard of, so that no client is told a port on which nobody
    listens. With `sni`, all brokers are behind the bootstrap port instead, and a client's handshake tells which one it wants.
    """

    def __init__(
        self,
        config: ListenerConfig,
        directory: Path,
        upstream: Upstream,
        counters: Counters,
        sessions: Sessions,
        admission: Admission,
        make_context: Callable[[Translate], SessionContext],
        claims: PortClaims | None = None,
    ) -> None:
        """`directory` is the config file's; with `claims`, other processes listen on the same ports (SO_REUSEPORT).

        Raises OSError where the certificates can't be used.
        """
        self._config = config
        self._upstream = upstream
        self._brokers = upstream.brokers
        self._counters = counters
        self._sessions = sessions
        self._admission = admission
        self._context = make_context(self.translate)
        sasl = config.sasl
        observer = SaslObserver(counters, sasl.principal_claim, close_unnamed=sasl.unnamed == "close")
        self._context.openers = self._context.openers | observer.openers()
        self._context.authentication_seconds = sasl.timeout_seconds
        self._context.max_sasl_bytes = sasl.max_frame_bytes
        self._gate = AuthenticationGate(sasl.max_frame_bytes, sasl.required)
        self._context.authentication_gate = None if sasl.required is False else self._gate
        self._ports: dict[int, int] = {}
        self._acceptors: list[Acceptor] = []
        self._closed = False
        self._claims = claims
        self.live: LiveContext[ServerContext] | None = None
        self._handshakes: Handshakes | None = None
        if config.tls is not None:
            tls, name = config.tls.resolved(directory), f"listeners[{config.name}].tls"
            known_name = None if config.sni is None else self._knows_name
            self.live = LiveContext(name, tls.files, lambda: server_context(tls, known_name), counters.certificate_reloads)
            self._handshakes = Handshakes(config.name, self.live, config.tls.handshake_seconds, counters)
            self._mapping = PrincipalMapping(config.tls.principal_mapping_rules)
        if config.broker_ports is not None:
            self._brokers.on_new(partial(self._open_broker_port, config.broker_ports))

    async def start(self) -> None:
        """Bind the bootstrap port and serve. Raises BindError."""
        bound = bind_bootstrap_port(self._config, reuse_port=self._claims is not None)
        self._serve(bound, self._upstream.dial_anyone, "the bootstrap broker")

    def translate(self, node_id: int, host: str, port: int) -> Address | None:
        """What clients of this listener are told instead of a broker's own address; None: nothing, for want of a port."""
        self._brokers.learn(node_id, host, port)
        if (names := self._config.sni) is not None:
            return names.name(node_id), names.port or self._config.bootstrap_port
        mine = self._ports.get(node_id)
        return None if mine is None else (self._config.advertised_host, mine)

    def require_sasl(self, *, wanted: bool | None) -> None:
        """A look at the cluster has ended: the brokers want clients to authenticate or not, or None if that was not found out.

        The config goes before that.
        """
        gate = self._gate
        if self._config.sasl.required is not None or (not gate.looking and wanted in (None, gate.required)):
            return
        gate.looking = False
        if wanted is not None:
            gate.required = wanted
        for session in self._sessions:
            session.call_ready()

    def limit_frames(self, max_bytes: int) -> None:
        """Requests of connections from now on may be so long."""
        self._context.max_frame_bytes = max_bytes

    @property
    def starting(self) -> int:
        """How many connections were accepted and are still in their TLS handshake."""
        return sum(acceptor.starting for acceptor in self._acceptors)

    def finish(self) -> None:
        """Take whoever has connected so far and then nobody any more; sessions and handshakes go on."""
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.finish()

    async def close(self) -> None:
        """Accept nobody any more and end handshakes; open sessions go on."""
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.close()

    def _open_broker_port(self, broker_ports: PortRange, node_id: int) -> None:
        if self._closed:
            return
        ports = broker_ports.ports
        taken = set(self._ports.values())
        # The first port plus the node id, so that it stays the same over restarts; the next free one where that is taken.
        begin = node_id % len(ports)
        for port in chain(ports[begin:], ports[:begin]):
            if port in taken:
                continue
            try:
                if not self._mine(port, node_id):
                    continue
                bound = _bind(self._config.host, port, reuse_port=self._claims is not None)
            except OSError as error:
                _log.warning(
                    "listener %s: port %d, meant for broker %d, can't be bound: %s; trying the next of broker_ports",
                    self._config.name, port, node_id, error.strerror, extra={"broker": node_id},
                )  # fmt: skip
                continue
            self._warn_of_collision(broker_ports, node_id, port)
            self._ports[node_id] = port
            _log.info(
                "listener %s: clients reach broker %d at %s:%d",
                self._config.name, node_id, self._config.advertised_host, port, extra={"broker": node_id},
            )  # fmt: skip
            self._serve(bound, partial(self._upstream.dial_broker, node_id), f"broker {node_id}", node_id)
            return
        _log.error(
            "listener %s: no port of broker_ports %s is left for broker %d, clients won't be told of it: widen broker_ports",
            self._config.name, broker_ports, node_id, extra={"broker": node_id},
        )  # fmt: skip

    def _warn_of_collision(self, broker_ports: PortRange, node_id: int, port: int) -> None:
        """Warn where the broker gets another port than its own because a second broker has that port."""
        ports = broker_ports.ports
        own = ports[node_id % len(ports)]
        others = [other for other, taken in self._ports.items() if taken == own]
        if port == own or not others:
            return
        known = [node_id, *self._ports]
        _log.warning(
            "listener %s: broker_ports %s is too narrow: port %d is that of broker %d and of broker %d, which gets port %d now,"
            " and may get another one after a restart; clients that remember its port would reach another broker — widen"
            " broker_ports to %d ports or more",
            self._config.name, broker_ports, own, others[0], node_id, port, max(known) - min(known) + 1,
            extra={"broker": node_id},
        )  # fmt: skip

    def _mine(self, port: int, node_id: int) -> bool:
        """Whether the other processes that listen on these ports, if there are any, agree that this one is the broker's.

        Raises OSError where it is found that somebody else listens there: with SO_REUSEPORT also another Weir with workers.
        """
        host = self._config.host
        return self._claims is None or self._claims.claim(
            host, port, node_id, lambda: _bind(host, port, reuse_port=False).close()
        )

    def _serve(self, bound: socket.socket, dial: Dial, broker: str, node_id: int | None = None) -> None:
        host = SessionHost(self._context, self._sessions, dial, broker, node_id)
        name, admission = self._config.name, self._admission
        if self._handshakes is None:
            acceptor = Acceptor(bound, lambda slot: cast("asyncio.Protocol", Session(host, slot)), admission, name)
        else:
            failures = self._counters.handshake_failures
            welcome = Welcome(name, partial(self._host_of, host), self._mapping, failures)
            acceptor = Acceptor(bound, lambda slot: Arrival(welcome, slot), admission, name, tls=self._handshakes)
        acceptor.start()
        self._acceptors.append(acceptor)

    def _knows_name(self, server_name: str | None) -> bool:
        """Whether it is the name of a broker or of the bootstrap address, where brokers are told apart by name."""
        names = self._config.sni
        if server_name is None or names is None:
            return False
        node_id = names.node_id(server_name)
        return server_name == self._config.advertised_host.lower() if node_id is None else node_id in self._brokers

    def _host_of(self, bootstrap: SessionHost, server_name: str | None) -> SessionHost:
        """What a session finds around it whose client has asked for that name."""
        names = self._config.sni
        node_id = None if names is None or server_name is None else names.node_id(server_name)
        if node_id is None:
            return bootstrap
        return SessionHost(
            self._context, self._sessions, partial(self._upstream.dial_broker, node_id), f"broker {node_id}", node_id
        )


def bind_bootstrap_port(config: ListenerConfig, *, reuse_port: bool) -> socket.socket:
    """A listening socket; with `reuse_port` other processes may have theirs on the same port. Raises BindError."""
    host, port = config.host, config.bootstrap_port
    try:
        return _bind(host, port, reuse_port=reuse_port)
    except OSError as error:
        raise BindError(
            f"listeners[{config.name}].bootstrap_port: {host}:{port} can't be bound: "
            f"{why_not(error, f'listeners[{config.name}].host')}"
        ) from error


def _bind(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    bound.setblocking(False)
    return bound
