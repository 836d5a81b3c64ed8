"""The clients: tail readers with their producer in one process, and each replay in a process of its own.

All of them are librdkafka with its default settings, unless a comment gives a reason. A process gets commands through a pipe.
"""

import multiprocessing
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, Producer, TopicPartition

from loadtest.testkit.fleet import is_disconnect

STAMPED_BYTES = 200
REST, RUN, REPORT, END = "rest", "run", "report", "end"

_STAMP = struct.Struct(">qq")
"""The record's number, and monotonic nanoseconds."""

_PATIENCE_SECONDS = 60.0
_AT_ONCE = 500


class ClientError(RuntimeError):
    """A client's process ended or does not answer."""


class Client:
    """A context manager: a process that runs `target`, which gets `arguments` and its end of a pipe."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        self.name = name
        self._pipe, theirs = multiprocessing.Pipe()
        # It ends with its pipe, so with this process too.
        self._process = multiprocessing.get_context("spawn").Process(target=target, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def command(self, command: str) -> None:
        self._pipe.send(command)

    def said(self) -> Any:  # noqa: ANN401 -- each target sends its own messages
        """The next message. Raises ClientError."""
        if not self._pipe.poll(_PATIENCE_SECONDS):
            raise ClientError(f"{self.name} does not answer within {_PATIENCE_SECONDS:.0f} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise ClientError(f"{self.name} has ended; its error is above") from None

    def has_said(self) -> bool:
        return self._pipe.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5.0)
        self._process.kill()
        self._process.join()


@dataclass(frozen=True)
class Tailed:
    """Monotonic nanoseconds of each record that a tail reader got since the last report: sent, and on the way."""

    samples: list[tuple[int, int]]
    missed: int
    """Records that one of the readers did not get, since the start."""
    failures: int
    """Records that the broker did not get, errors and disconnects, since the start."""


def tail(servers: str, topic: str, readers: int, per_second: float, pipe: Connection) -> None:
    """Produce stamped records and read them with `readers` consumers, until END. Sends "ready", and `Tailed` for a REPORT."""
    tails = [_TailReader(servers, topic, f"tail-{number}") for number in range(readers)]
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": servers, "client.id": "producer", "error_cb": failures.append})
    begun, produced, ready = time.monotonic(), 0, False
    while True:
        if pipe.poll(max(0.0, begun + produced / per_second - time.monotonic())):
            if _command(pipe) == END:
                break
            samples = [sample for reader in tails for sample in reader.take()]
            errors = len(failures) + sum(len(reader.errors) for reader in tails)
            pipe.send(Tailed(samples, sum(reader.missed for reader in tails), errors))
            continue
        stamp = _STAMP.pack(produced, time.monotonic_ns())
        producer.produce(topic, stamp + bytes(STAMPED_BYTES - _STAMP.size), on_delivery=delivered)
        producer.poll(0)
        produced += 1
        if not ready and all(reader.started for reader in tails):
            ready = True
            pipe.send("ready")
    producer.flush(5.0)
    for reader in tails:
        reader.closed.set()


class _TailReader(threading.Thread):
    def __init__(self, servers: str, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self.errors: list[KafkaError] = []
        self.closed = threading.Event()
        self.started = False
        self.missed = 0
        self._samples: list[tuple[int, int]] = []
        self._consumer = _consumer(servers, name, self.errors)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        self.start()

    def take(self) -> list[tuple[int, int]]:
        taken, self._samples = self._samples, []
        return taken

    def run(self) -> None:
        expected = 0
        while not self.closed.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            arrived = time.monotonic_ns()
            error = message.error()
            if error is not None:
                self.errors.append(error)
                continue
            number, sent = _STAMP.unpack_from(message.value() or b"")
            self._samples.append((sent, arrived - sent))
            self.missed += abs(number - expected) if self.started else 0
            self.started = True
            expected = number + 1
        self._consumer.close()


@dataclass(frozen=True)
class Replayed:
    """The bytes of the records that a replay got, and of those that it got while it was far behind."""

    record_bytes: int
    far_behind: int
    disconnects: int


def replay(servers: str, topic: str, client_id: str, records: int, max_lag: int, pipe: Connection) -> None:
    """Read a topic from its beginning between RUN and REST, until END. Sends "caught up" after the first `records` records.

    `max_lag` is that of the replays' lane. Sends `Replayed` for a REPORT.
    """
    errors: list[KafkaError] = []
    consumer = _consumer(servers, client_id, errors)
    partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([partition])
    running = far = caught_up = False
    found = record_bytes = far_behind = 0
    while True:
        if not running or pipe.poll():
            command = _command(pipe)
            if command == END:
                break
            if command == REPORT:
                pipe.send(Replayed(record_bytes, far_behind, sum(is_disconnect(error) for error in errors)))
            else:
                running = command == RUN
            continue
        messages = consumer.consume(_AT_ONCE, 0.1)
        if not messages:
            continue
        found += len(messages)
        size = sum(map(len, messages))
        record_bytes += size
        _, end = consumer.get_watermark_offsets(partition, cached=True)
        # The rule of the lane, from this side: far behind above the limit, and until a tenth of it.
        lag = end - (messages[0].offset() or 0)
        far = lag > max_lag or (far and 10 * lag >= max_lag)
        far_behind += size if far else 0
        if not caught_up and found >= records:
            caught_up = True
            pipe.send("caught up")
    consumer.close()


def _consumer(servers: str, client_id: str, errors: list[KafkaError]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "client.id": client_id,
            "group.id": client_id,
            "enable.auto.commit": False,
            "error_cb": errors.append,
            # A replay that rests stops to fetch once this queue is full.
            "queued.max.messages.kbytes": 2_048,
        }
    )


def _command(pipe: Connection) -> str:
    try:
        return str(pipe.recv())
    except (EOFError, ConnectionResetError):  # the scenario has ended
        return END
