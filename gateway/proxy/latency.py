"""The brokers' latency in their answers, and the time that requests waited in Weir before."""

from typing import Final

from gateway.proxy.counters import LATENCY_SLOTS, Counters
from gateway.proxy.in_flight import Entry

_SLOTS_PER_SECOND: Final = 1 << 20


def note_latency(counters: Counters, entry: Entry, now: float) -> None:
    """Note that the answer to a request has begun."""
    api_key = entry.api_key
    latency = now - entry.since
    slot = min(int(latency * _SLOTS_PER_SECOND).bit_length(), LATENCY_SLOTS)
    counters.latency[api_key][slot] += 1
    counters.latency_seconds[api_key] += latency
    if entry.waited > 0.0:
        moves = counters.wait_moves[api_key]
        moves[slot] -= 1
        moves[min(int((latency + entry.waited) * _SLOTS_PER_SECOND).bit_length(), LATENCY_SLOTS)] += 1
        counters.wait_seconds[api_key] += entry.waited
    for bucket in entry.buckets:
        bucket.answered_total += 1
        bucket.latency_seconds_total += latency
