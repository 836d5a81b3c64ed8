"""Requests that wait for their answers, in the order in which those are due."""

from collections import deque
from dataclasses import dataclass

from gateway.quotas.bucket import Bucket

Entry = tuple[int, int, float, object]
"""(correlation id, api key << 16 | version, time of the request, what is special about it: None, or one of the below).

A plain tuple, because one is made for each request.
"""

InFlight = deque[Entry]


@dataclass(frozen=True, slots=True)
class ChargedFetch:
    """A Fetch whose answer is to be charged to a bucket."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class ThrottledFetch:
    """A Fetch that found its bucket empty. `forwarded`: the broker was asked for nearly nothing, to keep its fetch session
    in step, and its answer is to be emptied; otherwise the answer is made here."""

    forwarded: bool
