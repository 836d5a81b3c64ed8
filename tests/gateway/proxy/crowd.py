"""Many sessions before one engine, and a clock that jumps from event to event. Each client is a closed loop of requests."""

import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise

from gateway.proxy.context import SessionContext
from gateway.proxy.core import SessionCore
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.wire import Data
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from protocol.cursor import LENGTH_BYTES
from tests.gateway.proxy.transcript import START, SilentWire, gateway_address

ROUND_TRIP = 0.001
READ_BYTES = 65_536


class Crowd:
    """The clock, the engine and the events. `tick` is called once a second."""

    def __init__(
        self,
        settings: QuotaSettings,
        handlers: dict[int, HandlerFactory] | None = None,
        tick: Callable[[float], object] = lambda now: None,
        seed: int = 0,
    ) -> None:
        self.now = START
        self.chance = random.Random(seed)
        self.engine = QuotaEngine(settings, START)
        self.context = SessionContext(self.engine, Counters(), gateway_address, 100 << 20, handlers or {}, ProduceGate())
        self.events = 0
        self._tick = tick
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.after(1.0, self._each_second)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.now + max(seconds, 0.0), next(self._order), act))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._events[0][0] <= end:
            self.now, _, act = heappop(self._events)
            self.events += 1
            act()
        self.now = end

    def _each_second(self) -> None:
        self.engine.tick(self.now)
        self._tick(self.now)
        self.after(1.0, self._each_second)


class CrowdSession(SilentWire):
    """One connection. `serve` returns the broker's answer to a frame; `take` gets the client's frames."""

    def __init__(self, crowd: Crowd, serve: Callable[[bytes], bytes], take: Callable[[bytes], None]) -> None:
        self._crowd, self._serve, self._take = crowd, serve, take
        self._paused = self.closed = False
        self._socket = b""
        self._to_client = bytearray()
        self._to_broker = bytearray()
        self._alarm: object = None
        self._core = SessionCore(self, crowd.context)

    def send(self, frame: bytes) -> None:
        self._socket += frame
        self._read()

    def close(self) -> None:
        self.closed = True
        self._core.close(self._crowd.now)

    def write_client(self, data: Data) -> None:
        self._to_client += data
        for frame in _frames(self._to_client):
            self._crowd.after(
                ROUND_TRIP * self._crowd.chance.random(), partial(self._unless_closed, partial(self._take, frame))
            )

    def write_broker(self, data: Data) -> None:
        self._to_broker += data
        for frame in _frames(self._to_broker):
            self._crowd.after(ROUND_TRIP * (0.5 + self._crowd.chance.random()), partial(self._answer, self._serve(frame)))

    def pause_client(self) -> None:
        self._paused = True

    def resume_client(self) -> None:
        self._paused = False

    def wake_at(self, when: float) -> None:
        self._alarm = alarm = object()
        now = self._crowd.now
        due = (round(now * 1e6) // 1000 + round((when - now) * 1000)) / 1000  # uvloop counts whole milliseconds
        self._crowd.after(due - now, lambda: self._wake(alarm))

    def call_ready(self) -> None:
        self._crowd.after(0.0, lambda: self._unless_closed(lambda: self._core.ready(self._crowd.now)))

    def call_in_turn(self) -> None:
        self.call_ready()

    def _wake(self, alarm: object) -> None:
        if alarm is self._alarm:
            self._unless_closed(lambda: self._core.wake(self._crowd.now))

    def _unless_closed(self, act: Callable[[], None]) -> None:
        if not self.closed:
            act()
            self._read()

    def _answer(self, answer: bytes) -> None:
        if not self.closed or self._core.owed:
            self._core.broker_data(answer, self._crowd.now)
            self._unless_closed(lambda: self._core.follow_up(self._crowd.now))

    def _read(self) -> None:
        while self._socket and not self._paused and not self.closed:
            chunk, self._socket = self._socket[:READ_BYTES], self._socket[READ_BYTES:]
            self._core.requests.feed(chunk, self._crowd.now)


def _frames(received: bytearray) -> list[bytes]:
    """Take the whole frames from the beginning."""
    frames = []
    while len(received) >= LENGTH_BYTES and len(received) >= (size := LENGTH_BYTES + int.from_bytes(received[:4], "big")):
        frames.append(bytes(received[:size]))
        del received[:size]
    return frames


def longest_gap(times: list[float], end: float, start: float = START) -> float:
    """The longest time between `start` and `end` without one of these moments."""
    return max(after - before for before, after in pairwise([start, *(each for each in times if each > start), end]))
