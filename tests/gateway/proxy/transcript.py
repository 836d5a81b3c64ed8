"""A session without sockets: a test writes the frames of client and broker as a transcript, and asserts the output."""

from typing import Any

from gateway.proxy.collected import CollectBudget
from gateway.proxy.context import SessionContext
from gateway.proxy.core import SessionCore
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory, RequestGate
from gateway.proxy.produce_gate import ProducedTopics, ProduceGate
from gateway.proxy.wire import Data, Recorder
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from protocol.bodies.addresses import Translate
from tests.gateway.quotas.engines import rows_of

START = 1_000.0


def limits(produce: float | None = None, fetch: float | None = None, *, client_id: str = "etl", **rest: Any) -> QuotaSettings:
    """Bytes per second for one client-id; the burst is the amount of ten seconds."""
    by_key = {"producer_byte_rate": produce, "consumer_byte_rate": fetch}
    entity = ClientQuotaEntity(None, client_id)
    quota = EntityQuota(entity, {key: limit for key, limit in by_key.items() if limit is not None})
    return QuotaSettings((quota,), **rest)


def gateway_address(node_id: int, host: str, port: int) -> tuple[str, int]:
    """The address that clients get for a broker."""
    return "weir.example.com", 29_093 + node_id


class SilentWire:
    """A wire without peers."""

    def write_client(self, data: Data) -> None: ...

    def write_broker(self, data: Data) -> None: ...

    def pause_client(self) -> None: ...

    def resume_client(self) -> None: ...

    def wake_at(self, when: float) -> None: ...

    def call_ready(self) -> None: ...

    def call_in_turn(self) -> None: ...

    def make_room(self, error: Exception) -> None: ...

    def unread_client_bytes(self) -> int:
        return 0

    def client_silence_seconds(self) -> float:
        return 0.0

    def client_has_left(self) -> bool:
        return False

    def refuse(self, seconds: float) -> None: ...


class Transcript:
    """A `Wire` for a test that plays both the client and the broker.

    While the session does not read the client, the client's bytes wait in `socket`, like bytes in the kernel. Time changes only
    by `passes`. Each inbox keeps all bytes in order until the test asserts them.
    """

    def __init__(
        self,
        settings: QuotaSettings | None = None,
        *,
        engine: QuotaEngine | None = None,
        translate: Translate = gateway_address,
        max_frame_bytes: int = 100 * 1024 * 1024,
        handlers: dict[int, HandlerFactory] | None = None,
        gate: ProduceGate | None = None,
        authentication_gate: RequestGate | None = None,
        counters: Counters | None = None,
        topics: ProducedTopics | None = None,
        recorder: Recorder | None = None,
        own_topics: OwnTopics | None = None,
        collect_budget: CollectBudget | None = None,
    ) -> None:
        self.now = START
        self._uncopied = False
        self.engine = engine or QuotaEngine(settings or QuotaSettings(), START)
        self.counters = counters or Counters()
        context = SessionContext(self.engine, self.counters, translate, max_frame_bytes, handlers or {}, gate or ProduceGate())
        context.authentication_gate = authentication_gate
        context.recorder = recorder
        context.topics = topics or context.topics
        context.own_topics = own_topics or context.own_topics
        context.collect_budget = collect_budget or context.collect_budget
        self.core = SessionCore(self, context)
        self.paused = False
        self.called_ready = False
        self.ended: Exception | None = None
        self.socket = b""
        self.last_sent = START
        self.left = False  # the client has closed its side, behind its last bytes
        self.alarm: float | None = None
        self.closes_after: float | None = None
        self.client_inbox = bytearray()
        self.broker_inbox = bytearray()

    # The wire.

    def write_client(self, data: Data) -> None:
        self.client_inbox += data

    def write_broker(self, data: Data) -> None:
        self.broker_inbox += data

    def pause_client(self) -> None:
        self.paused = True

    def resume_client(self) -> None:
        self.paused = False

    def wake_at(self, when: float) -> None:
        self.alarm = when

    def call_ready(self) -> None:
        self.called_ready = True

    def call_in_turn(self) -> None:
        self.called_ready = True

    def make_room(self, error: Exception) -> None:
        self.ended = error

    def unread_client_bytes(self) -> int:
        return len(self.socket)

    def client_silence_seconds(self) -> float:
        return self.now - self.last_sent

    def client_has_left(self) -> bool:
        return self.left

    def refuse(self, seconds: float) -> None:
        self.paused = True
        self.closes_after = seconds

    # The script.

    def client_sends(self, *frames: bytes, by: int | None = None, uncopied: bool = False) -> None:
        """Deliver the frames in one chunk, or in chunks of `by` bytes. `uncopied`: as `LargeRequestReader` does."""
        self._uncopied = uncopied
        for chunk in _chunks(b"".join(frames), by):
            self.socket += chunk
            self.last_sent = self.now
            self._read_socket()

    def client_sends_into_the_loop(self, *frames: bytes) -> None:
        """Deliver frames that were read from the socket just before reading was paused."""
        self.core.requests.feed(b"".join(frames), self.now)

    def broker_answers(self, *frames: bytes, by: int | None = None) -> None:
        """Deliver the frames in one chunk, or in chunks of `by` bytes."""
        for chunk in _chunks(b"".join(frames), by):
            self.core.broker_data(chunk, self.now)
            self.core.follow_up(self.now)
            self._read_socket()

    def run_ready(self) -> None:
        """Run the `ready` callback that a request handler has requested, as the event loop does."""
        called, self.called_ready = self.called_ready, False
        assert called
        self.core.ready(self.now)
        self._read_socket()

    def goes_on(self) -> None:
        """Let the event loop turn until the session has taken the client's requests."""
        while self.called_ready:
            self.run_ready()

    def passes(self, seconds: float) -> None:
        """Let time pass, and run the timer if it is due meanwhile."""
        until = self.now + seconds
        while self.alarm is not None and self.alarm <= until + 1e-9:
            self.now, self.alarm = max(self.now, self.alarm), None
            self.core.wake(self.now)
            self._read_socket()
        self.now = until

    def ends(self) -> None:
        """Start draining: the session begins no further request."""
        self.core.requests.drain()

    def half_closes(self) -> bool:
        """True if the session half-closes the client's connection now. The transcript does not show the end of the stream."""
        half_closed = self.core.half_close(self.now)
        self._read_socket()
        return half_closed

    def broker_got(self, *frames: bytes) -> None:
        """Assert that exactly these frames arrived since the last assertion."""
        got, self.broker_inbox = bytes(self.broker_inbox), bytearray()
        assert got == b"".join(frames)

    def client_got(self, *frames: bytes) -> None:
        """Assert that exactly these frames arrived since the last assertion."""
        got, self.client_inbox = bytes(self.client_inbox), bytearray()
        assert got == b"".join(frames)

    def configure(self, settings: QuotaSettings) -> None:
        """Change the configuration, and check the session's throttle again."""
        self.engine.apply(settings, self.now)
        self.core.reconsider(self.now)

    @property
    def throttled_by(self) -> str:
        """The configuration key of the quota that mutes the client; "" if none does."""
        return self.core.throttle.cause.partition(" of ")[0]

    def row(self, kind: str = "produce", client_id: str = "etl") -> Any:
        (row,) = (row for row in rows_of(self.engine, self.now) if (row.kind, row.client_id) == (kind, client_id))
        return row

    def _read_socket(self) -> None:
        while self.socket and not self.paused:
            requests = self.core.requests
            passing = requests.passing_bytes if self._uncopied else 0
            chunk, self.socket = self.socket[: passing or None], self.socket[passing:] if passing else b""
            if passing:
                requests.forward_body(memoryview(bytearray(chunk)), self.now)
            else:
                requests.feed(chunk, self.now)


def _chunks(data: bytes, by: int | None) -> list[bytes]:
    by = by or max(len(data), 1)
    return [data[start : start + by] for start in range(0, len(data), by)]
