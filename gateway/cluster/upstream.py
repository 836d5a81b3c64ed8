"""Connections to brokers, for clients and for Weir itself. Only Weir's own connections use `upstream.sasl`."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from gateway import clock, open_files
from gateway.cluster.any_address import open_connection
from gateway.cluster.brokers import Address, Brokers
from gateway.cluster.deadlines import Deadlines
from gateway.cluster.kept_connections import KeptConnections
from gateway.cluster.login import Login
from gateway.cluster.unanswered import Unanswered
from gateway.config.endpoints import is_ip_address
from gateway.config.model import UpstreamConfig
from gateway.proxy.counters import Counters
from gateway.proxy.poller import Poller
from gateway.proxy.sessions import Attempt
from gateway.proxy.socket_transport import SocketTransport, dial
from gateway.proxy.tcp_info import peer_address
from gateway.proxy.tls.broker_handshake import BrokerHandshake
from gateway.proxy.tls.causes import cause_of
from gateway.proxy.tls.contexts import LiveContext, client_context
from gateway.proxy.tls.tls_transport import TlsTransport
from gateway.quotas.addresses import address_of
from protocol.errors import OtherCluster, ProtocolError

CONNECT_SECONDS = 10.0
ANYONE_SECONDS = 2.5
"""Timeouts for a client's broker, and for one address of several. The last address gets the remaining time, because the
cluster may be slow. An attempt without a task comes first, and gets the second timeout for TCP. With TLS, its handshake may
end later: until the timeout of a client's broker, or of the only address. A broker that is busy with handshakes would have to
begin it again otherwise."""

FAILED_SECONDS = 30.0
"""The time for which an address that failed is tried last, and never without a task."""

RESOLVED_SECONDS = 10.0
"""The time for which new connections use the IP address that a broker's name had."""


def problem_of(error: OSError | TimeoutError, seconds: float) -> str:
    """The cause of a failed connection, without the address. `seconds` was the timeout."""
    if isinstance(error, ssl.SSLError):
        words = cause_of(error, "the broker's").words
        return f"TLS handshake failed: {words}"
    if words := error.strerror or str(error):
        return words
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    # An error without a message: the peer has closed the connection in the TLS handshake.
    return "it closed the connection in the TLS handshake; does that port speak TLS?"


@contextmanager
def bad_names_as_os_errors() -> Iterator[None]:
    """Turn the error for a host that can't be a name in DNS into an OSError. Brokers may advertise any text."""
    try:
        yield
    except UnicodeError:
        raise OSError("the host is not a name that DNS can have") from None


async def connect(
    address: Address, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
) -> asyncio.Transport:
    """Connect a protocol, with TLS if there is a context. Raises OSError."""
    if context is None:
        with bad_names_as_os_errors():
            transport, _ = await open_connection(protocol, address)
        return transport
    done = asyncio.get_running_loop().create_future()
    tls = TlsTransport(context, BrokerHandshake(protocol(), done), address[0])
    try:
        with bad_names_as_os_errors():
            await open_connection(lambda: cast("asyncio.Protocol", tls), address)
        await done
        return cast("asyncio.Transport", tls)
    except BaseException:
        done.cancel()
        tls.abort()
        raise
    finally:
        del done  # it has the error, whose traceback refers to this frame


def attempt(
    poller: Poller, resolved: Address, protocol: asyncio.Protocol, context: ssl.SSLContext | None, host: str
) -> tuple[Attempt, SocketTransport]:
    """Begin to connect a protocol to an IP address, with TLS if there is a context. Raises OSError if that fails at once.

    The server's certificate must be that of `host`. The second result is the connection below TLS.
    """
    if context is None:
        transport = dial(poller, resolved, protocol)
        return transport, transport
    tls = TlsTransport(context, BrokerHandshake(protocol), host)
    below = dial(poller, resolved, cast("asyncio.Protocol", tls))
    tls.connect_over(cast("asyncio.Transport", below))
    return tls, below


class _UnderWay(NamedTuple):
    """An attempt without a task. `began` is monotonic, in seconds. The TLS handshake may last until `seconds` after it."""

    address: Address
    below: SocketTransport
    began: float
    seconds: float

    def is_late(self, now: float) -> bool:
        return now - self.began >= (ANYONE_SECONDS if self.below.connecting else self.seconds)


class Upstream:
    """Connects to brokers. `live` has the TLS context, and is None for plaintext. `login` is for Weir's own connections.

    With a `poller`, most connections of clients are made at once: those to an IP address that is known.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        directory: Path,
        brokers: Brokers,
        counters: Counters,
        poller: Poller | None = None,
    ) -> None:
        """`directory` is the config file's. Raises ConfigError if the certificates can't be used."""
        self.brokers = brokers
        self.poller = poller
        self.login = Login(config.sasl, directory)
        self.live: LiveContext[ssl.SSLContext] | None = None
        self._deadlines = Deadlines()
        self._made: list[asyncio.Transport] = []  # since the last `tick`
        self._attempts: dict[Attempt, _UnderWay] = {}
        self._resolved: dict[Address, tuple[Address, float]] = {}  # IP addresses, and how long they hold
        self._failed: dict[Address, float] = {}  # the last failure, monotonic seconds
        self.kept = KeptConnections(counters)
        self._unanswered = Unanswered(ANYONE_SECONDS)
        self._silent: set[Address] = set()  # took a client's request and did not answer, until they answer one
        if config.tls is not None:
            tls = config.tls.resolved(directory)
            self.live = LiveContext("upstream.tls", tls, lambda: client_context(tls), counters.certificate_reloads)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of new connections, None for plaintext."""
        return None if self.live is None else self.live.context

    def client_options(self) -> dict[str, Any]:
        """aiokafka's connection options for TLS and SASL. Raises CredentialsError."""
        context, options = self.context, self.login.options()
        protocol = ("SASL_" if options else "") + ("PLAINTEXT" if context is None else "SSL")
        return options | {"security_protocol": protocol} | ({} if context is None else {"ssl_context": context})

    async def dial_broker(self, node_id: int, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol to a broker. Raises OSError, which names the cause."""
        try:
            address = self.brokers.address(node_id)
        except KeyError:
            raise OSError("the cluster's metadata has not had it for some time") from None
        return await self._connect(address, protocol, CONNECT_SECONDS)

    async def dial_anyone(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol to the first broker that can be reached. Raises OSError, which names the cause for each address.

        An address that failed is tried last, so that a silent server delays one client and not every client. One that takes
        requests and does not answer counts as failed again as soon as a client tries it.
        """
        addresses = self._in_order()
        failures: list[str] = []
        began = clock.monotonic()
        for number, address in enumerate(addresses, 1):
            left = CONNECT_SECONDS - (clock.monotonic() - began)
            if left <= 0.0:
                break  # the rest is untried: it must stay before those that failed
            self._note_try(address)
            try:
                transport = await self._connect(
                    address, protocol, left if number == len(addresses) else min(ANYONE_SECONDS, left)
                )
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
            else:
                self._unanswered.watch(transport, address, clock.monotonic())
                return transport
        raise OSError("; ".join(failures))

    def dial_broker_at_once(self, node_id: int, protocol: asyncio.Protocol) -> Attempt | None:
        """Begin to connect to a broker; None if that takes `dial_broker`."""
        if node_id not in self.brokers:
            return None
        address = self.brokers.address(node_id)
        return self._take_kept(address, protocol) or self._attempt(address, protocol, CONNECT_SECONDS)

    def dial_anyone_at_once(self, protocol: asyncio.Protocol) -> Attempt | None:
        """Begin to connect to the first broker that has not just failed; None if that takes `dial_anyone`.

        If all have failed, those that only did not answer take turns.
        """
        addresses = self._in_order()
        address = next((each for each in addresses if not self._is_unreachable(each)), None)
        if address is None:
            return None
        kept = self._take_kept(address, protocol)
        if kept is not None:
            return kept
        made = self._attempt(address, protocol, CONNECT_SECONDS if len(addresses) == 1 else ANYONE_SECONDS)
        if made is not None:
            self._note_try(address)
            self._unanswered.watch(cast("asyncio.Transport", made), address, clock.monotonic())
        return made

    def _take_kept(self, address: Address, protocol: asyncio.Protocol) -> Attempt | None:
        resolved = self._resolved.get(address)
        if resolved is None:
            return None
        name = "" if self.live is None else address[0]
        return self.kept.take((*resolved[0], name), protocol)

    def keep(self, broker: asyncio.Transport) -> bool:
        """Keep the connection of a client that has gone, for another client. False: the caller has to close it."""
        return self.kept.keep(broker, clock.monotonic())

    def on_refused(self, broker: asyncio.Transport, error: ProtocolError) -> None:
        """Try the address of a connection behind all others if it belongs to another cluster now."""
        if not isinstance(error, OtherCluster):
            return
        peer = peer_address(broker.get_extra_info("socket"))
        if peer is None:
            return
        now = clock.monotonic()
        self._failed[peer] = now
        for address, (resolved, _) in self._resolved.items():
            if resolved == peer:
                self._failed[address] = now

    def _in_order(self) -> Sequence[Address]:
        """All brokers: first those that have not failed, then the others from the oldest failure on."""
        addresses = self.brokers.anyone()
        return sorted(addresses, key=lambda address: self._failed.get(address, 0.0)) if self._failed else addresses

    def _is_unreachable(self, address: Address) -> bool:
        """True if the last attempt to connect has just failed. A broker that does not answer can be connected to."""
        return address in self._failed and address not in self._silent

    def _note_try(self, address: Address) -> None:
        """Let no other client try an address that did not answer, until this one has an answer."""
        if address in self._silent:
            self._failed[address] = clock.monotonic()

    def _attempt(self, address: Address, protocol: asyncio.Protocol, seconds: float) -> Attempt | None:
        if self.poller is None or self._is_unreachable(address):
            return None
        resolved = self._resolved.get(address) or self._literal(address)
        if resolved is None:
            return None
        try:
            transport, below = attempt(self.poller, resolved[0], protocol, self.context, address[0])
        except OSError as error:
            if error.errno not in open_files.OWN_ERRORS:
                del self._resolved[address]
            return None
        if transport.connecting:
            self._attempts[transport] = _UnderWay(address, below, clock.monotonic(), seconds)
        else:
            self._made.append(cast("asyncio.Transport", transport))
        return transport

    def _literal(self, address: Address) -> tuple[Address, float] | None:
        """Remember an address whose host is an IP address, in the kernel's spelling. Java writes no IPv6 address with `::`.

        Brokers move, so none stays for ever.
        """
        host, port = address
        if not is_ip_address(host):
            return None
        self._resolved[address] = known = (str(address_of(host)), port), clock.monotonic() + RESOLVED_SECONDS
        return known

    async def _connect(self, address: Address, protocol: Callable[[], asyncio.Protocol], seconds: float) -> asyncio.Transport:
        """Connect within `seconds`. Raises OSError, which names the cause."""
        try:
            open_files.require_below(open_files.first_beyond_brokers())
            transport = await self._deadlines.keep(connect(address, protocol, self.context), seconds)
        except OSError as error:  # a TimeoutError is one
            if error.errno not in open_files.OWN_ERRORS:
                self._failed[address] = clock.monotonic()
                self._resolved.pop(address, None)
            raise OSError(problem_of(error, round(seconds, 1))) from error
        except (ValueError, OverflowError, TypeError) as error:  # an invalid host or port
            raise OSError(f"{address[0]!r}:{address[1]} is not an address: {error}") from error
        self._made.append(transport)
        if address not in self._silent:
            self._failed.pop(address, None)
        peer = transport.get_extra_info("peername")
        if peer is not None:
            self._resolved[address] = (peer[0], peer[1]), clock.monotonic() + RESOLVED_SECONDS
        return transport

    def tick(self, now: float) -> None:
        """End late attempts, forget old IP addresses and failures, and have the kernel probe the brokers of new connections.

        Called once a second. The last step costs a twentieth of a new connection's CPU time. Short ones have ended before.
        """
        self.kept.tick(now)
        self._resolved = {address: known for address, known in self._resolved.items() if known[1] > now}
        self._failed = {address: since for address, since in self._failed.items() if since + FAILED_SECONDS > now}
        for address, answered in self._unanswered.judge(now):
            if not answered:
                self._silent.add(address)
                self._failed[address] = now
            elif address in self._silent:
                self._silent.discard(address)
                self._failed.pop(address, None)
        for transport, under_way in list(self._attempts.items()):
            if transport.connecting and not under_way.is_late(now):
                continue
            del self._attempts[transport]
            if transport.connecting:
                self._failed[under_way.address] = now
                transport.fail(TimeoutError())
            else:
                self._made.append(cast("asyncio.Transport", transport))
        made, self._made = self._made, []
        for connected in made:
            if not connected.is_closing():
                connected.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
