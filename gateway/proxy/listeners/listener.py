"""A listener's ports: the bootstrap port and the ports of the brokers."""

import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import cast

from gateway import binding, open_files
from gateway.cluster.brokers import FORGET_SECONDS, Address
from gateway.cluster.upstream import Upstream
from gateway.config.endpoints import PortRange
from gateway.config.model import ListenerConfig
from gateway.proxy.connection import Session
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.handlers.sasl import AuthenticationGate, SaslObserver
from gateway.proxy.listeners.acceptor import Acceptor, Admission, Serve
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.listeners.proxy_headers import ProxyHeaders
from gateway.proxy.listeners.tls_acceptor import AcceptedTlsClient, TlsAcceptor
from gateway.proxy.sessions import Dial, DialAtOnce, SessionHost, Sessions
from gateway.proxy.tls.contexts import LiveContext, server_context
from gateway.proxy.tls.handshakes import Handshakes
from gateway.proxy.tls.principal import PrincipalMapping
from gateway.quotas.entity import BOOTSTRAP
from protocol.bodies.addresses import Translate

_PORT_ERRORS = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL})
"""Errors for which another port may do."""

_log = logging.getLogger("weir.cluster")


class Listener:
    """One entry of `listeners` in the config file.

    The listener binds a broker's port as soon as it learns of the broker, before it advertises the port to any client. With
    `sni`, clients reach all brokers at the bootstrap port, and the server name in the handshake selects the broker.
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
        """`directory` is the config file's. With `claims`, other processes listen on the same ports (SO_REUSEPORT).

        Raises `ConfigError` if the certificates can't be used.
        """
        self._config = config
        self._upstream = upstream
        self._brokers = upstream.brokers
        self._counters = counters
        self._sessions = sessions
        self._admission = admission
        self._context = make_context(self.translate)
        self._context.learn = self._brokers.learn_answer
        sasl = config.sasl
        observer = SaslObserver(
            counters, sasl.principal_claim, close_unnamed=sasl.unnamed == "close", max_bytes=sasl.max_frame_bytes
        )
        self._context.add_handlers(observer.handler_factories())
        self._context.authentication_seconds = sasl.timeout_seconds
        self._gate = AuthenticationGate(sasl.max_frame_bytes, sasl.required)
        self._context.authentication_gate = None if sasl.required is False else self._gate
        self._ports: dict[int, int] = {}
        self._unbound: set[int] = set()  # brokers without a port
        self._problem = ""  # why the last one of them has none
        self._acceptors: list[Acceptor] = []
        self._broker_acceptors: dict[int, Acceptor] = {}
        self._closed = False
        self._claims = claims
        self.live: LiveContext[ssl.SSLContext] | None = None
        self._handshakes: Handshakes | None = None
        if config.tls is not None:
            tls, name = config.tls.resolved(directory), f"listeners[{config.name}].tls"
            known_name = None if config.sni is None else self._knows_name
            self.live = LiveContext(name, tls, lambda: server_context(tls, known_name), counters.certificate_reloads)
            self._handshakes = Handshakes(config.name, self.live, config.tls.handshake_seconds, counters)
            self._mapping = PrincipalMapping(config.tls.principal_mapping_rules)
        self._headers: ProxyHeaders | None = None
        if config.proxy_protocol.mode != "disabled":
            self._headers = ProxyHeaders(config.name, config.proxy_protocol, counters, self._context.outlet)
        if config.broker_ports is not None:
            self._brokers.on_new(partial(self._open_broker_port, config.broker_ports))
            self._brokers.on_forgotten(self._close_broker_port)
            counters.brokers_without_port[config.name] = 0

    async def start(self) -> None:
        """Bind the bootstrap port and accept clients. Raises `BindError`."""
        bound = binding.bind_bootstrap_port(self._config, reuse_port=self._claims is not None)
        upstream = self._upstream
        self._serve(bound, self._host(None, upstream.dial_anyone, upstream.dial_anyone_at_once))

    def translate(self, node_id: int, host: str, port: int) -> Address | None:
        """A broker's address for clients of this listener; None if the broker has no port here.

        Learns unknown brokers. `learn_answer` learns that a known one has moved, from answers that name their cluster.
        """
        if node_id not in self._brokers:
            self._brokers.learn(node_id, host, port)
        if (names := self._config.sni) is not None:
            return names.name(node_id), names.port or self._config.bootstrap_port
        mine = self._ports.get(node_id)
        return None if mine is None else (self._config.advertised_host, mine)

    def require_sasl(self, *, wanted: bool | None) -> None:
        """Apply the result of a cluster look-up: the brokers require authentication or not; None if the look-up failed.

        `sasl.required` in the config overrides the result.
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
        """Set the maximum request size of new connections."""
        self._context.max_frame_bytes = max_bytes

    @property
    def starting(self) -> int:
        """The number of accepted connections without a session. One whose handshake has just begun may count twice."""
        handshakes = 0 if self._handshakes is None else self._handshakes.in_progress
        return handshakes + sum(acceptor.starting for acceptor in self._acceptors)

    def finish(self) -> None:
        """Accept the connections that are already waiting, then no more. Sessions and handshakes continue."""
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.finish()

    def close(self) -> None:
        """Stop accepting and cancel handshakes. Sessions continue."""
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.close()
        if self._handshakes is not None:
            self._handshakes.close()

    def tick(self) -> None:
        """Try again to bind ports for live brokers that lack one. Called once a second."""
        if self._config.broker_ports is not None:
            live = self._brokers.addresses()
            ports_of_others = True
            for node_id in sorted(self._unbound & live.keys()):
                self._open_broker_port(self._config.broker_ports, node_id, ports_of_others=ports_of_others)
                # If no port has become free, that holds for all brokers.
                ports_of_others = ports_of_others and node_id in self._ports
            self._counters.brokers_without_port[self._config.name] = len(live.keys() - self._ports.keys())

    @property
    def unusable(self) -> str | None:
        """The reason if clients of this listener can reach none of the live brokers."""
        live = self._brokers.addresses().keys()
        if self._config.broker_ports is None or not live or not live.isdisjoint(self._ports):
            return None
        return self._problem or None

    def _open_broker_port(self, broker_ports: PortRange, node_id: int, *, ports_of_others: bool = True) -> None:
        """Bind the broker's port. With `ports_of_others`, also try the ports that other programs had at an earlier try."""
        if self._closed:
            return
        again = node_id in self._unbound
        ports = broker_ports.ports
        taken = set(self._ports.values())
        # First port plus node id, so that a broker keeps its port over restarts. If that port is taken, the next free one.
        begin = node_id % len(ports)
        in_order = [port for port in chain(ports[begin:], ports[:begin]) if port not in taken]
        # Ports that other programs had come last, so that workers choose the same port whenever the programs end.
        tries = [(port, False) for port in in_order]
        if ports_of_others and self._claims is not None:
            tries += [(port, True) for port in in_order]
        for port, of_others in tries:
            try:
                bound = self._bind_broker_port(port, node_id, ports if of_others else ())
            except OSError as error:
                if error.errno not in _PORT_ERRORS:
                    self._bind_later(node_id, port, error)
                    return
                if not (again or of_others):
                    _log.warning(
                        "listener %s: port %d, meant for broker %d, can't be bound: %s; trying the next port of broker_ports",
                        self._config.name, port, node_id, error.strerror, extra={"broker": node_id},
                    )  # fmt: skip
                continue
            if bound is None:
                continue
            self._unbound.discard(node_id)
            self._warn_of_collision(broker_ports, node_id, port)
            self._ports[node_id] = port
            _log.info(
                "listener %s: clients reach broker %d at %s:%d",
                self._config.name, node_id, self._config.advertised_host, port, extra={"broker": node_id},
            )  # fmt: skip
            self._broker_acceptors[node_id] = self._serve(bound, self._host_of_broker(node_id))
            return
        self._unbound.add(node_id)
        self._problem = (
            f"listener {self._config.name}: no port of broker_ports {broker_ports} can be bound for a live broker:"
            " widen broker_ports"
        )
        if not again:
            _log.error(
                "listener %s: no port of broker_ports %s is left for broker %d, so clients can't reach it."
                " The cluster has %d brokers. Weir tries again each second: %s",
                self._config.name, broker_ports, node_id, len(self._brokers.addresses()), self._remedy(ports),
                extra={"broker": node_id},
            )  # fmt: skip

    def _remedy(self, ports: Sequence[int]) -> str:
        """The remedy if a broker gets no port."""
        gone = self._brokers.missing().keys() & self._ports.keys()
        if gone and len(self._brokers.addresses()) <= len(ports):
            minutes = FORGET_SECONDS / 60
            return f"ports of {len(gone)} brokers that have gone will be free in {minutes:g} minutes; or widen broker_ports"
        return "widen broker_ports"

    def _close_broker_port(self, node_id: int) -> None:
        """Free the port of a broker that is forgotten."""
        self._unbound.discard(node_id)
        self._ports.pop(node_id, None)
        acceptor = self._broker_acceptors.pop(node_id, None)
        if acceptor is not None:
            acceptor.close()
            self._acceptors.remove(acceptor)

    def _bind_later(self, node_id: int, port: int, error: OSError) -> None:
        """Bind the broker's port later, and not another one: a broker keeps its port over restarts and on all gateways."""
        self._unbound.add(node_id)
        self._problem = f"listener {self._config.name}: port {port} can't be bound: {error.strerror}"
        _log.warning(
            "listener %s: port %d for broker %d can't be bound, so clients can't reach the broker: %s; Weir tries again each"
            " second — %s",
            self._config.name, port, node_id, error.strerror, open_files.remedy(error),
            extra={"broker": node_id, "reason": f"broker_port {self._config.name}"},
        )  # fmt: skip

    def _warn_of_collision(self, broker_ports: PortRange, node_id: int, port: int) -> None:
        """Warn if the broker's own port belongs to another broker, so that this broker gets a different port."""
        ports = broker_ports.ports
        own = ports[node_id % len(ports)]
        others = [other for other, taken in self._ports.items() if taken == own]
        if port == own or not others:
            return
        live = {node_id, *self._brokers.addresses()}
        wanted = max(live) - min(live) + 1
        if wanted > len(ports):
            problem, remedy = "is too narrow", f"widen broker_ports to {wanted} ports or more"
        elif others[0] not in live:
            minutes = FORGET_SECONDS / 60
            problem = "has ports of brokers that have gone"
            remedy = f"start new brokers {minutes:g} minutes after the old ones have gone, or widen broker_ports"
        else:
            problem, remedy = "has ports of other programs", "end those programs, or choose another range"
        _log.warning(
            "listener %s: broker_ports %s %s: port %d is that of broker %d and of broker %d, which gets port %d now."
            " After a restart, it may get another port. Clients that remember the old port would then reach another broker: %s",
            self._config.name, broker_ports, problem, own, others[0], node_id, port, remedy, extra={"broker": node_id},
        )  # fmt: skip

    def _bind_broker_port(self, port: int, node_id: int, broker_ports: Sequence[int]) -> socket.socket | None:
        """None if other worker processes have the port for another broker. `broker_ports` is as for `PortClaims.claim`.

        Raises `OSError` if another program has the port; with SO_REUSEPORT, this may be another Weir with workers.
        """
        host = self._config.host
        if self._claims is None:
            return binding.listening_socket(host, port, reuse_port=False)

        def bind(shared: bool) -> socket.socket:
            return binding.listening_socket(host, port, reuse_port=shared)

        return self._claims.claim(host, port, node_id, bind, self._brokers.__contains__, broker_ports)

    def _serve(self, bound: socket.socket, host: SessionHost) -> Acceptor:
        name = self._config.name
        if self._handshakes is None:
            serve = cast("Serve", partial(Session, host))
        else:
            failures = self._counters.handshake_failures
            tls = TlsAcceptor(name, partial(self._host_of, host), self._mapping, failures)
            serve = cast("Serve", partial(AcceptedTlsClient, tls))
        acceptor = Acceptor(
            bound,
            serve,
            self._admission,
            name,
            broker=BOOTSTRAP if host.node_id is None else host.node_id,
            tls=self._handshakes,
            headers=self._headers,
            poller=self._upstream.poller,
        )
        acceptor.start()
        self._acceptors.append(acceptor)
        return acceptor

    def _knows_name(self, server_name: str | None) -> bool:
        """True if `server_name` is a broker's name or the bootstrap host. Used with `sni` only."""
        names = self._config.sni
        if server_name is None or names is None:
            return False
        node_id = names.node_id(server_name)
        return server_name == self._config.advertised_host.lower() if node_id is None else node_id in self._brokers

    def _host_of(self, bootstrap: SessionHost, server_name: str | None) -> SessionHost:
        """The session host for a client that asked for `server_name`."""
        names = self._config.sni
        node_id = None if names is None or server_name is None else names.node_id(server_name)
        return bootstrap if node_id is None else self._host_of_broker(node_id)

    def _host_of_broker(self, node_id: int) -> SessionHost:
        upstream = self._upstream
        return self._host(node_id, partial(upstream.dial_broker, node_id), partial(upstream.dial_broker_at_once, node_id))

    def _host(self, node_id: int | None, dial: Dial, at_once: DialAtOnce) -> SessionHost:
        upstream = self._upstream
        return SessionHost(self._context, self._sessions, dial, node_id, at_once, upstream.on_refused, upstream.keep)
