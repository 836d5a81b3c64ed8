"""A session's sockets: asyncio on one side, `SessionCore` on the other.

The classes don't inherit from asyncio's protocols: mypyc compiles this module, and a base class must be compiled as well.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from functools import partial
from typing import cast

from gateway.clock import monotonic
from gateway.cluster.brokers import Address
from gateway.proxy.broker_end import CONNECTING, CORE, REFUSED, WRITE_BUFFER_HIGH, BrokerSession, Dialing, loss_of
from gateway.proxy.core import SessionCore
from gateway.proxy.draining import Draining
from gateway.proxy.handler import EndConnection
from gateway.proxy.large_requests import HEAD_BYTES, LARGE_BYTES, LargeRequestReader
from gateway.proxy.sessions import ConnectionFacts, SessionHost
from gateway.proxy.socket_transport import is_own
from gateway.proxy.tcp_info import transferred_bytes, unread_bytes
from gateway.proxy.tls.tls_transport import is_tls
from gateway.proxy.wire import Data, Slot, writer_to
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import BOOTSTRAP
from protocol.errors import InvalidFrame, ProtocolError

_log = logging.getLogger("weir.session")


class Session(BrokerSession):
    """A client's connection: an asyncio protocol, and the `Wire` of its core. `address` is the client's own."""

    __deletable__ = ("_core", "_requests")

    def __init__(self, host: SessionHost, slot: Slot, address: Address) -> None:
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        self._core = core = SessionCore(self, host.context, slot)
        self._requests = core.requests
        self.last_active = self._begun = monotonic()
        self._draining: Draining | None = None
        self._client, self._paused, self._large = None, 0, False
        self._host = host
        self._slot: Slot | None = slot  # None once the session has left `Sessions`
        self._loop = asyncio.get_running_loop()
        self._broker: asyncio.Transport | None = None
        self._dialing: Dialing | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._undecrypted: Callable[[], int] | None = None
        self.peer = core.connection.peer = f"{address[0]}:{address[1]}"
        core.client.ip = core.throttle.origin.address = address[0]
        self.node_id = core.throttle.origin.broker = host.node_id
        core.client.broker = BOOTSTRAP if host.node_id is None else host.node_id
        self._authenticate_by = self.last_active + host.context.authentication_seconds

    def identify(self, user: str) -> None:
        """Set the user that the client has proved to be in its TLS handshake."""
        self._core.client.identify(user, self.last_active)

    # The client's connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = client = cast("asyncio.Transport", transport)
        self._host.sessions.add(self)
        client.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._core.responses.writer = writer_to(client)
        if is_tls(transport):
            self._undecrypted = getattr(client, "get_read_buffer_size")  # noqa: B009 -- unknown to asyncio
        if self._undecrypted is not None or is_own(transport):
            self._guarded(self._core.begin)
        else:  # uvloop begins to read after this method, even if it pauses the transport
            self._loop.call_soon(self._guarded, self._core.begin)

    def data_received(self, data: bytes) -> None:
        self.last_active = now = monotonic()
        try:
            self._requests.feed(data, now)
        except Exception as error:
            self._end_for(error, "client")
            return
        if len(data) >= HEAD_BYTES and not self._large and self._requests.passing_bytes >= LARGE_BYTES:
            self._expect_large_requests()

    def _expect_large_requests(self) -> None:
        client, broker = self._client, self._broker
        if client is None or broker is None or self._undecrypted is not None or self._draining is not None:
            return
        self._large = True
        broker.set_write_buffer_limits(high=1)  # bytes that wait in the kernel occupy no buffer here
        client.set_protocol(cast("asyncio.Protocol", LargeRequestReader(self, self._requests)))

    def forward_body(self, piece: memoryview) -> bool:
        self.last_active = now = monotonic()
        try:
            self._requests.forward_body(piece, now)
        except Exception as error:
            self._end_for(error, "client")
        return self._broker is not None and self._broker.get_write_buffer_size() > 0

    def pause_writing(self) -> None:
        """Read neither the broker nor the client: both cause responses, and the client does not read them."""
        if self._broker is not None:
            self._broker.pause_reading()
        self._requests.pause_for_client()

    def resume_writing(self) -> None:
        if self._broker is not None and not self._broker.is_closing():
            self._broker.resume_reading()
        self._guarded(self._core.client_reads)

    def eof_received(self) -> bool:
        """The client has closed its side. True if it still gets answers, as from a broker; else the transport closes ours."""
        if self._requests.unfinished:
            self._refuse("client", InvalidFrame("truncated", "it closed in the middle of a request"))
        elif not self._core.idle:
            self._host.sessions.client_ended(self)
            self.drain()
            return self._draining is not None and self._draining.end_with_client()
        return False

    def peer_closed(self) -> None:
        """The client has closed its side, and is not read. If its quota alone holds it, it has its answers, and is gone."""
        if not self.closing and self._draining is None:
            self._host.sessions.client_ended(self)
            if self._core.throttle.active and self._core.idle:
                self.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the broker's connection after the bytes that the client had sent: acks=0 producers close without waiting."""
        if isinstance(exc, ProtocolError):
            self._report_error("client", exc)
        if self._dialing is not None and not self._requests.wants_no_answers:
            self._dialing.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._broker is not None and self._requests.client_full and not self._broker.is_closing():
            self._broker.resume_reading()
        if self._broker is not None and self._core.reusable and self._host.keep(self._broker):
            self._broker = None
        self._core.close(monotonic())
        self._client = self._undecrypted = None
        self._close_idle_broker()
        if self._broker is None and self._dialing is None:
            self._let_go_of_core()
        elif not self._owed:
            self._leave()

    def _close_idle_broker(self) -> None:
        """Close the broker's connection after the client's, once no answer of the broker's counts any more."""
        if self._client is None and self._broker is not None and not self._core.owed:
            self._broker.close()

    @property
    def _owed(self) -> bool:
        """True while Weir holds bytes for the broker, or the broker answers that count, after the client has gone.

        Such a session stays in `Sessions`: connection limits count it, a drain waits for it, and the idle limit ends it.
        """
        if self._broker is None:
            return self._requests.wants_no_answers
        return self._core.owed or self._broker.get_write_buffer_size() > 0

    def _leave(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._host.sessions.remove(self)
            slot.release()

    # The broker's connection.

    def broker_connected(self, broker: asyncio.Transport) -> None:
        self._broker = broker
        self._requests.connect(writer_to(broker))
        dialing, self._dialing = self._dialing, None
        if dialing is not None:
            dialing.deliver(broker)
        self._close_idle_broker()
        if self.closing:
            return
        if self._requests.client_full:
            broker.pause_reading()
        if dialing is not None and dialing.waited:
            self.resume(CONNECTING)
            self._go_on_draining()

    def broker_unreachable(self, error: Exception | None) -> None:
        self._dialing = None
        if isinstance(error, OSError):
            self._host.context.outlet.connection_rejected("broker_unreachable", self._core.throttle.origin.address)
            self._report(logging.WARNING, "broker_unreachable", "%s can't be reached: %s", self._host.broker, error)
            self._close_client()
        elif error is not None:
            self._fail(error)
        if self._client is None:
            self._let_go_of_core()

    def broker_data(self, data: bytes) -> None:
        self.last_active = now = monotonic()
        whose = "broker"
        try:
            self._core.broker_data(data, now)
            whose = "client"
            self._core.follow_up(now)
        except Exception as error:
            self._end_for(error, whose)
        self._go_on_draining()
        self._close_idle_broker()

    def broker_lost(self, exc: Exception | None) -> None:
        if self._broker is None and (self._dialing is None or self._dialing.lose_attempt()):
            return  # the dialing goes on, or was cancelled in the turn in which the broker's handshake ended
        self._broker = None
        self._core.lose(monotonic())
        if self._client is None:
            if self._dialing is None:
                self._let_go_of_core()
        elif not self._client.is_closing():
            level, reason, why = loss_of(exc)
            self._report(level, reason, "%s %s", self._host.broker, why)
            self._client.close()

    # The `Wire` of the core.

    def write_client(self, data: Data) -> None:
        if self._client is not None:
            self._client.write(data)

    def write_broker(self, data: Data) -> None:
        """Connect to the broker: these are the client's first bytes. A client that sends nothing costs its broker nothing."""
        if self._dialing is not None:
            self._dialing.early.append(data)
        else:
            self._dialing = Dialing(self, self._host, data)
            self._dialing.begin()

    def pause_client(self) -> None:
        self.pause(CORE)

    def resume_client(self) -> None:
        self.resume(CORE)

    def wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, when - monotonic()), self._wake)
        if self._client is not None and self._client.get_extra_info("peer_closed"):  # before this mute
            self._loop.call_soon(self.peer_closed)  # the transport notifies once; the mute's pause begins after this call

    def call_ready(self) -> None:
        """Call the core's `ready` in the event loop's next turn, unless the client is gone by then."""
        if not self.closing:
            self._loop.call_soon(self._guarded, self._core.ready)

    def call_in_turn(self) -> None:
        self._host.sessions.next_turns.add(partial(self._guarded, self._core.ready))

    def make_room(self, error: Exception) -> None:
        if self._client is not None:  # also a closing one: it keeps its bytes until its client reads them
            self._end_for(error, "client")

    def unread_client_bytes(self) -> int:
        """The client's bytes in the kernel; under TLS also those that came with the bytes before a pause."""
        client, undecrypted = self._client, self._undecrypted
        if client is None or client.is_closing():
            return 0
        return unread_bytes(client.get_extra_info("socket").fileno()) + (0 if undecrypted is None else undecrypted())

    def _wake(self) -> None:
        self._timer = None
        self._guarded(self._core.wake)

    def _guarded(self, step: Callable[[float], None]) -> None:
        """Take a step of the core, unless the client is gone."""
        if self.closing:
            return
        try:
            step(monotonic())
            self._go_on_draining()
        except Exception as error:
            self._end_for(error, "client")

    # The `OpenSession` of `Sessions`, and the `DrainedSession` of `Draining`.

    def close(self, reason: str, text: str = "") -> None:
        self._report(logging.INFO, reason, "connection closed: %s", text or reason)
        self._close_client()

    @property
    def closing(self) -> bool:
        return self._client is None or self._client.is_closing()

    def give_up(self) -> None:
        """Close it, unless acks=0 requests wait for their turn, or the client still reads its answers. May be called again."""
        if self.closing or self._requests.client_full:
            return
        if self._requests.owes_nothing if self._draining is None else self._draining.client_ended:
            self._close_client()

    def abort(self) -> None:
        for transport in filter(None, (self._client, self._broker)):
            transport.abort()

    def drain(self) -> None:
        if self._draining is None and self._client is not None and not self._client.is_closing():
            self._core.requests.drain()
            self._draining = Draining(self, self._client)
            self._draining.begin()

    @property
    def draining(self) -> bool:
        return self._draining is not None

    @property
    def half_closed(self) -> bool:
        return self._draining is not None and self._draining.half_closed

    @property
    def under_way(self) -> int:
        return len(self._core.in_flight)

    def half_close(self) -> bool:
        try:
            return self._dialing is None and self._core.half_close(monotonic())
        except Exception as error:
            self._end_for(error, "client")
        return False

    def let_go(self, buckets: Set[Bucket]) -> None:
        self._core.throttle.let_go(buckets, monotonic())

    def reconsider(self) -> None:
        self._core.reconsider(monotonic())

    def find_room(self) -> None:
        self._core.find_room(monotonic())

    def facts(self, now: float) -> ConnectionFacts | None:
        transferred = (0, 0) if self._client is None else transferred_bytes(self._client.get_extra_info("socket"))
        return None if self._slot is None else self._core.facts(self._begun, transferred, now)

    def late_to_authenticate(self, now: float) -> bool:
        gate = self._core.connection.authentication_gate
        return gate is not None and gate.required is not False and now > self._authenticate_by

    # The end.

    def refuse(self, seconds: float) -> None:
        self.pause(REFUSED)
        self._loop.call_later(seconds, self._close_client)

    def _close_client(self) -> None:
        if self._client is not None:
            self._core.connection.take_no_more()
            self._client.close()

    def _let_go_of_core(self) -> None:
        """Break the cycle of references after the last event, so that the garbage collector has no work with this session."""
        self._leave()
        self._draining = None
        self._core.end()
        del self._core, self._requests

    def _go_on_draining(self) -> None:
        if self._draining is not None:
            self._draining.go_on()

    def _end_for(self, error: Exception, whose: str) -> None:
        """End the session for an error in the bytes of the `whose` side (client, broker)."""
        if isinstance(error, ProtocolError):
            self._refuse(whose, error)
        elif isinstance(error, EndConnection):
            self.close(error.limit or str(error), str(error))
            if error.limit and self._client is not None:
                self._host.context.outlet.connection_rejected(error.limit, self._core.throttle.origin.address)
                self._client.abort()
        else:
            self._fail(error)

    def _refuse(self, whose: str, error: ProtocolError) -> None:
        self._report_error(whose, error)
        if whose == "broker" and self._broker is not None:
            self._close_client()  # the client still gets the good answers that came before
            self._host.on_refused(self._broker, error)
            self._broker.abort()
        elif self._client is not None:
            self._client.abort()  # `connection_lost` closes the broker's connection after the requests before

    def _fail(self, error: Exception) -> None:
        self._host.context.counters.protocol_errors["internal"] += 1
        _log.error("connection closed, for a bug of Weir's", exc_info=error, extra={"peer": self.peer, "reason": "internal"})
        self.abort()

    def _report_error(self, whose: str, error: ProtocolError) -> None:
        self._host.context.counters.protocol_errors[error.reason] += 1
        self._report(logging.WARNING, error.reason, "connection closed, the %s broke the protocol: %s", whose, error)

    def _report(self, level: int, reason: str, text: str, *values: object) -> None:
        _log.log(level, text, *values, extra={"peer": self.peer, "broker": self._host.broker, "reason": reason})
