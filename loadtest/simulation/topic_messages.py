"""Produce requests of several topics, for runs with topic quotas, and the rules that hold for their batches."""

from collections import defaultdict
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from loadtest.simulation.kafka_messages import PAUSED, VERSION, Api, Head, answer, framed, head_of, text

BIG_TOPICS: Final = ("logs", "metrics")
SMALL_TOPIC: Final = "audit"
"""The topic with a threshold of its own, which no client exceeds."""

CLIENT_TOPICS: Final = {name: bytes([255] * 15 + [number]) for number, name in enumerate((*BIG_TOPICS, SMALL_TOPIC))}
"""Ids by name."""

_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_RESULT: Final = Struct(">ihqqq")
_BEFORE_TOPICS: Final = 8
_PARTITION_HEAD: Final = 12


def produce(number: int, client_id: str, batches: dict[str, int]) -> bytes:
    """A Produce with a batch for each topic. `batches` has the bytes of the batches."""
    topics = [
        text(name.encode()) + _INT32.pack(1) + bytes(4) + _INT32.pack(size) + _INT64.pack(number) + bytes(size - 8)
        for name, size in batches.items()
    ]
    body = b"".join((b"\xff\xff", _INT16.pack(-1), _INT32.pack(30_000), _INT32.pack(len(topics)), *topics))
    return framed(Api.PRODUCE, VERSION[Api.PRODUCE], number, client_id, body)


def batches_in(frame: bytes, head: Head) -> dict[str, int]:
    """The bytes of each topic's batch."""
    at = head.body + _BEFORE_TOPICS
    (count,) = _INT32.unpack_from(frame, at)
    at += 4
    found = {}
    for _ in range(count):
        (length,) = _INT16.unpack_from(frame, at)
        name = frame[at + 2 : at + 2 + length].decode()
        at += 2 + length + _PARTITION_HEAD
        (size,) = _INT32.unpack_from(frame, at - 4)
        found[name] = size
        at += size
    return found


def produced(number: int, batches: dict[str, int]) -> bytes:
    rows = [text(name.encode()) + _INT32.pack(1) + _RESULT.pack(0, 0, number, -1, 0) for name in batches]
    return answer(number, b"".join((_INT32.pack(len(rows)), *rows, bytes(4))))


def results_in(frame: bytes) -> dict[str, tuple[int, int]]:
    """The error and the first offset by topic."""
    (count,) = _INT32.unpack_from(frame, 8)
    at, found = 12, {}
    for _ in range(count):
        (length,) = _INT16.unpack_from(frame, at)
        name = frame[at + 2 : at + 2 + length].decode()
        at += 2 + length + 4
        _, error, first, _, _ = _RESULT.unpack_from(frame, at)
        found[name] = error, first
        at += _RESULT.size
    return found


@dataclass(slots=True)
class Batches:
    """The batches that clients have sent and brokers have got: topics by the number of their request."""

    sent: dict[int, dict[str, int]] = field(default_factory=dict)
    forwarded: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def send(self, frame: bytes) -> None:
        head = head_of(frame)
        self.sent[head.number] = batches_in(frame, head)

    def forward(self, frame: bytes, head: Head) -> bool:
        """True if the request has only batches that its client has sent."""
        found = batches_in(frame, head)
        self.forwarded[head.number] |= found.keys()
        return found.items() <= self.sent[head.number].items()

    def problem(self, number: int, frame: bytes) -> str:
        """The error in a response, or ""."""
        results, sent = results_in(frame), self.sent[number]
        if results.keys() != sent.keys():
            return f"the response to {number} has the topics {sorted(results)}, and {sorted(sent)} were sent"
        for name, (error, first) in results.items():
            arrived = name in self.forwarded[number]
            if error == 0 and (not arrived or first != number):
                return f"{name} in the response to {number} is accepted, and a broker did not get its batch"
            if error and (arrived or error != PAUSED):
                return f"{name} in the response to {number} has the error {error}, and a broker got its batch: {arrived}"
            if error and name == SMALL_TOPIC:
                return f"{name} is rejected in the response to {number}, and it is within its own threshold"
        return ""
