"""The brokers' latency in the answers of one connection, and the time that requests waited in Weir before."""

from typing import Final

from gateway.proxy.counters import LATENCY_SLOTS, Counters
from gateway.proxy.in_flight import Entry

_SLOTS_PER_SECOND: Final = 1 << 20


class AnswerLatency:
    """Notes latencies in the counters of all connections. `waited` is called before the answer's `note`."""

    __slots__ = ("_latency", "_latency_seconds", "_wait_moves", "_wait_seconds", "_waits")

    def __init__(self, counters: Counters) -> None:
        self._latency = counters.latency
        self._latency_seconds = counters.latency_seconds
        self._wait_moves = counters.wait_moves
        self._wait_seconds = counters.wait_seconds
        self._waits: dict[Entry, float] = {}  # of requests in flight

    def note(self, entry: Entry, now: float) -> None:
        """Note that the answer to a request has begun."""
        api_key = entry.api_key
        latency = now - entry.since
        slot = min(int(latency * _SLOTS_PER_SECOND).bit_length(), LATENCY_SLOTS)
        self._latency[api_key][slot] += 1
        self._latency_seconds[api_key] += latency
        if self._waits:
            self._note_wait(entry, latency, slot)
        for bucket in entry.buckets:
            bucket.answered_total += 1
            bucket.latency_seconds_total += latency

    def waited(self, entry: Entry, seconds: float) -> None:
        """Note that a request waited in Weir before its `since`."""
        self._waits[entry] = seconds

    def end(self) -> None:
        """Drop the requests that are never answered."""
        self._waits.clear()

    def _note_wait(self, entry: Entry, latency: float, slot: int) -> None:
        wait = self._waits.pop(entry, 0.0)
        if wait > 0.0:
            moves = self._wait_moves[entry.api_key]
            moves[slot] -= 1
            moves[min(int((latency + wait) * _SLOTS_PER_SECOND).bit_length(), LATENCY_SLOTS)] += 1
            self._wait_seconds[entry.api_key] += wait
