"""Many consumers of one entity before one engine: sessions without sockets, and a clock that jumps from event to event."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from gateway.proxy.context import SessionContext
from gateway.proxy.core import SessionCore
from gateway.proxy.counters import Counters
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.wire import Data
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from protocol.bodies.fetch import peek_fetch, top_level_error
from protocol.headers import parse_request_header
from protocol.throttle import read_throttle, throttle_offset
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, gateway_address

OUTSIDE = (0, -1)
VERSION = 12
_FETCH = 1
_SMALLEST_FULL = 200
"""Bytes of a Fetch response that has records, at least."""


def full_answer(batch_bytes: int, batches: int = 1) -> bytes:
    """A Fetch response with `batches` batches."""
    return m.fetched(1, version=VERSION, records=m.batch(batch_bytes) + bytes(batch_bytes * (batches - 1)))


def fixed(answer: bytes) -> Callable[[int], bytes]:
    """A broker's topic that answers each Fetch with this answer."""
    return lambda _: answer


def batched(batch_bytes: int) -> Callable[[int], bytes]:
    """A broker's topic with enough batches of one size: as many whole batches as fit, at least one (KIP-74)."""
    answers: dict[int, bytes] = {}

    def answer(max_bytes: int) -> bytes:
        batches = max(1, min(max_bytes, 1 << 20) // batch_bytes)
        if batches not in answers:
            answers[batches] = full_answer(batch_bytes, batches)
        return answers[batches]

    return answer


NOTHING = m.fetched_nothing(1, version=VERSION)


@dataclass
class ConsumerLog:
    """One consumer's log: answers with records as (time, bytes), and empty ones as (time, throttle time in ms)."""

    full: list[tuple[float, int]] = field(default_factory=list)
    empty: list[tuple[float, int]] = field(default_factory=list)


class Consumers:
    """The simulation. `topic(max_bytes)` is the answer of the broker, or None for a long poll that brings nothing."""

    def __init__(self, settings: QuotaSettings) -> None:
        self.now = START
        self.engine = QuotaEngine(settings, START)
        self.forwarded: list[float] = []  # when a Fetch went to the broker
        self.brokers_bytes = 0  # of all its answers
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def add(
        self,
        topic: Callable[[int], bytes | None],
        *,
        starts: float = 0.0,
        polite: bool = True,
        round_trip: float = 0.001,
        thinks: Callable[[], float] = lambda: 0.0005,
        works: Callable[[], float] = lambda: 0.0,
        max_wait: float = 0.5,
        session: tuple[int, int] = OUTSIDE,
        client_id: str = "etl",
    ) -> ConsumerLog:
        """A consumer that fetches for ever. `polite`: it waits by itself for its throttle time, as the Java client does.

        It `works` for so many seconds on each answer with records, before its next Fetch.
        """
        consumer = _Consumer(self, topic, polite, round_trip, thinks, works, max_wait, session, client_id)
        self.at(self.now + starts, consumer.fetch)
        return consumer.log

    def at(self, when: float, act: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), act))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heappop(self._events)
            act()
        self.now = end


class _Consumer:
    def __init__(
        self,
        all_of_them: Consumers,
        topic: Callable[[int], bytes | None],
        polite: bool,
        round_trip: float,
        thinks: Callable[[], float],
        works: Callable[[], float],
        max_wait: float,
        session: tuple[int, int],
        client_id: str,
    ) -> None:
        self.log = ConsumerLog()
        self._all = all_of_them
        self._topic, self._polite, self._round_trip = topic, polite, round_trip
        self._thinks, self._works, self._max_wait = thinks, works, max_wait
        self._in_session = m.fetch(1, version=VERSION, session=session, client_id=client_id)
        self._beginning = m.fetch(1, version=VERSION, session=(session[0], 0), client_id=client_id)
        self._request = self._in_session
        self._paused = False
        self._socket = b""
        self._inbox = bytearray()
        self._alarm = 0.0
        context = SessionContext(all_of_them.engine, Counters(), gateway_address, 1 << 20, {}, ProduceGate())
        self._core = SessionCore(self, context)

    def fetch(self) -> None:
        self._socket = self._request
        self._read()

    def _read(self) -> None:
        if self._socket and not self._paused:
            chunk, self._socket = self._socket, b""
            self._core.requests.feed(chunk, self._all.now)

    def _answer(self, frame: bytes) -> None:
        self._inbox = bytearray()
        self._core.broker_data(frame, self._all.now)
        self._core.follow_up(self._all.now)
        self._read()

    def _wake(self, when: float) -> None:
        if when == self._alarm:
            self._core.wake(self._all.now)
            self._read()

    # The wire.

    def write_client(self, data: Data) -> None:
        self._inbox += data
        size = int.from_bytes(self._inbox[:4], "big") + 4
        if len(self._inbox) < size:
            return
        frame, self._inbox = bytes(self._inbox[:size]), self._inbox[size:]
        throttle_ms = read_throttle(frame, throttle_offset(_FETCH, VERSION, frame, 0, len(frame)))
        now = self._all.now
        if top_level_error(frame, 0, len(frame), VERSION) != 0:
            self._request = self._beginning
        pause = self._thinks()
        if size >= _SMALLEST_FULL:
            self._request = self._in_session
            self.log.full.append((now, size))
            pause += self._works()
        else:
            self.log.empty.append((now, throttle_ms))
        self._all.at(now + pause + (throttle_ms / 1000.0 if self._polite else 0.0), self.fetch)

    def write_broker(self, data: Data) -> None:
        frame = bytes(data)
        header = parse_request_header(frame, 4, len(frame), len(frame))
        head = peek_fetch(frame, header.body_offset, len(frame), VERSION)
        self._all.forwarded.append(self._all.now)
        answer = self._topic(head.max_bytes)
        if answer is None:
            self._all.at(self._all.now + self._round_trip + min(self._max_wait, head.max_wait), lambda: self._answer(NOTHING))
        else:
            self._all.brokers_bytes += len(answer)
            self._all.at(self._all.now + self._round_trip, lambda: self._answer(answer))

    def pause_client(self) -> None:
        self._paused = True

    def resume_client(self) -> None:
        self._paused = False

    def wake_at(self, when: float) -> None:
        self._alarm = when
        self._all.at(max(when, self._all.now), lambda: self._wake(when))

    def call_ready(self) -> None: ...

    def call_in_turn(self) -> None: ...

    def make_room(self, error: Exception) -> None: ...

    def unread_client_bytes(self) -> int:
        return len(self._socket)

    def client_silence_seconds(self) -> float:
        return 0.0

    def client_has_left(self) -> bool:
        return False

    def refuse(self, seconds: float) -> None: ...


def jain(amounts: list[float]) -> float:
    """Jain's index of fairness: 1.0 if all values are equal."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0
