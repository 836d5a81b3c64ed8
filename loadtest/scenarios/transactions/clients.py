"""librdkafka's clients of the workload. Each runs in a thread of its own until the recorder is `over`."""

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from loadtest.scenarios.transactions.history import Outcome, Poll, Record, Transaction, Write
from loadtest.scenarios.transactions.recorder import Recorder

PARTITIONS: Final = 3
TRANSACTION_TIMEOUT_MS: Final = 20_000
ABORTS: Final = 0.15
"""The part of the transactions that their producer aborts on purpose."""
ABANDONED: Final = 0.03
"""The part of the transactions that their producer leaves open, as if it had crashed."""

_CALL_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 30.0
_PACE_SECONDS: Final = 0.05
_RECORDS_OF_A_COPY: Final = 5
_SENDS_IN_FLIGHT: Final = 20
_SIZES: Final = (300, 3_000)


@dataclass(frozen=True, slots=True)
class Names:
    """The topics, the group and the prefix of transactional ids of one run."""

    run: str

    @property
    def source(self) -> str:
        return f"{self.run}-source"

    @property
    def sink(self) -> str:
        return f"{self.run}-sink"

    @property
    def group(self) -> str:
        return f"{self.run}-copiers"

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, part, OFFSET_BEGINNING) for name in (self.source, self.sink) for part in range(PARTITIONS)]


def name_of(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def encoded(value: str, copy_of: str, size: int) -> bytes:
    return f"{value} {copy_of}".ljust(size).encode()


def value_of(message: Message) -> str:
    return (message.value() or b"").decode().split()[0]


def record_of(message: Message) -> Record:
    return name_of(message.topic() or "", message.partition() or 0), message.offset() or 0, value_of(message)


@dataclass(slots=True)
class _Sent:
    """A record on its way. `offset` is set when it is acknowledged."""

    topic: str
    partition: int
    value: str
    copy_of: str = ""
    offset: int | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            self.offset = offset

    @property
    def write(self) -> Write:
        return Write(name_of(self.topic, self.partition), self.value, self.offset, self.copy_of)


class _Reopen(Exception):
    """The client cannot go on: its successor has to take its place."""


class Client:
    """A thread. Its `process` is its client-id as well."""

    def __init__(self, process: str, servers: str, names: Names, recorder: Recorder, seed: int) -> None:
        self.process = process
        self.names = names
        self.recorder = recorder
        self.random = random.Random(f"{seed} {process}")
        self._servers = servers
        self._thread = threading.Thread(target=self._run, name=process, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """True if the client has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def config(self, **more: object) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "client.id": self.process,
            "socket.timeout.ms": 15_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "log_level": 0,
            "error_cb": lambda _: None,
            "throttle_cb": lambda event: self.recorder.throttled(self.process, event.throttle_time),
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def unfinished(self) -> list[Transaction]:
        """Operations that are still under way, of a client that did not end."""
        return []

    def work(self) -> None:
        """Open the client and use it until the run is over. Raises KafkaException or `_Reopen` to be called again."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.recorder.over.is_set():
            try:
                self.work()
            # The binding raises SystemError from a poll in which both a fatal error and a delivery report arrive.
            except (_Reopen, KafkaException, BufferError, SystemError) as error:
                self.recorder.note(self.process, error.__cause__ or error)
                self.recorder.over.wait(0.2)


class TransactionalClient(Client):
    """Runs transactions, one after the other. Each attempt has new values."""

    def __init__(self, process: str, servers: str, names: Names, recorder: Recorder, seed: int) -> None:
        self._count = 0
        self._current: _Attempt | None = None
        super().__init__(process, servers, names, recorder, seed)

    def unfinished(self) -> list[Transaction]:
        return [] if self._current is None else [self._transaction(self._current)]

    @property
    def transactional_id(self) -> str:
        return f"{self.names.run}-{self.process}"

    def open_producer(self) -> Producer:
        producer = Producer(
            self.config(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                message_timeout_ms=TRANSACTION_TIMEOUT_MS,
                linger_ms=5,
            )
        )
        self._again(lambda: producer.init_transactions(_CALL_SECONDS))
        return producer

    def transact(
        self, producer: Producer, targets: Iterable[tuple[str, int, str]], offsets: Callable[[], None] | None = None
    ) -> Outcome:
        """Write to `targets` (topic, partition, source value) in one transaction. Raises `_Reopen` after a fatal error."""
        self._count += 1
        sent = [
            _Sent(topic, partition, f"{self.process}.{self._count}.{number}", copy_of)
            for number, (topic, partition, copy_of) in enumerate(targets)
        ]
        self._current = attempt = _Attempt(sent, self.recorder.now())
        try:
            self._attempt(producer, sent, offsets, attempt)
        finally:
            self.recorder.add(self._transaction(attempt))
            self._current = None
        return attempt.outcome

    def _transaction(self, attempt: "_Attempt") -> Transaction:
        writes = tuple(each.write for each in attempt.sent)
        return Transaction(self.process, attempt.outcome, writes, True, attempt.error, attempt.begin, self.recorder.now())

    def _attempt(self, producer: Producer, sent: list[_Sent], offsets: Callable[[], None] | None, attempt: "_Attempt") -> None:
        intent = self.random.random()
        try:
            producer.begin_transaction()
            for each in sent:
                data = encoded(each.value, each.copy_of, self.random.randint(*_SIZES))
                producer.produce(each.topic, data, partition=each.partition, on_delivery=each.delivered)
            if offsets is not None:
                self._again(offsets)
            if intent < ABANDONED:
                raise _Reopen("the transaction is abandoned")
            if intent < ABANDONED + ABORTS:
                producer.flush(self.random.random())
                self._abort(producer)
                return
            if producer.flush(_PATIENCE_SECONDS) == 0:
                attempt.outcome = Outcome.INFO
                self._again(lambda: producer.commit_transaction(_CALL_SECONDS))
                attempt.outcome = Outcome.OK
                return
            attempt.error = "records are not acknowledged"
            self._abort(producer)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            attempt.error = str(error)
            if error.fatal() or not error.txn_requires_abort():
                raise _Reopen(attempt.error) from raised
            self._abort(producer)
            attempt.outcome = Outcome.FAIL  # librdkafka promises that such a transaction has not been committed
        except BufferError as raised:
            raise _Reopen(str(raised)) from raised

    def _abort(self, producer: Producer) -> None:
        try:
            self._again(lambda: producer.abort_transaction(_CALL_SECONDS))
        except KafkaException as raised:
            raise _Reopen(str(raised)) from raised

    def _again(self, step: Callable[[], None]) -> None:
        """Repeat a step of a transaction while its error is retriable, as librdkafka's manual asks."""
        deadline = self.recorder.now() + _PATIENCE_SECONDS
        while True:
            try:
                return step()
            except KafkaException as error:
                if not error.args[0].retriable() or self.recorder.now() > deadline:
                    raise


@dataclass(slots=True)
class _Attempt:
    sent: list[_Sent]
    begin: float
    outcome: Outcome = Outcome.FAIL  # as long as nobody has asked for a commit
    error: str = ""


class Appender(TransactionalClient):
    """Appends two to six records to partitions of the source topic in each transaction."""

    def work(self) -> None:
        producer = self.open_producer()
        while not self.recorder.over.wait(self.random.random() * _PACE_SECONDS):
            topic = self.names.source
            targets = [(topic, self.random.randrange(PARTITIONS), "") for _ in range(self.random.randint(2, 6))]
            self.transact(producer, targets)


class Copier(TransactionalClient):
    """A member of a group that copies the source topic to the sink, with the offsets in the same transaction."""

    def work(self) -> None:
        producer = self.open_producer()
        settings = {"group_id": self.names.group, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        consumer = Consumer(
            self.config(isolation_level="read_committed", session_timeout_ms=6_000, max_poll_interval_ms=10_000, **settings)
        )
        try:
            consumer.subscribe([self.names.source])
            while not self.recorder.over.is_set():
                messages = [each for each in consumer.consume(_RECORDS_OF_A_COPY, timeout=0.5) if not each.error()]
                if messages and self._copy(producer, consumer, messages) is not Outcome.OK:
                    self._rewind(consumer)
        finally:
            consumer.close()

    def _copy(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> Outcome:
        positions = {message.partition() or 0: (message.offset() or 0) + 1 for message in messages}
        offsets = [TopicPartition(self.names.source, partition, offset) for partition, offset in positions.items()]
        targets = [(self.names.sink, self.random.randrange(PARTITIONS), value_of(message)) for message in messages]
        metadata = consumer.consumer_group_metadata()
        return self.transact(producer, targets, lambda: producer.send_offsets_to_transaction(offsets, metadata, _CALL_SECONDS))

    def _rewind(self, consumer: Consumer) -> None:
        """Go back to the committed offsets, as the aborted transaction has not moved them."""
        for position in consumer.committed(consumer.assignment(), timeout=_CALL_SECONDS):
            offset = position.offset if position.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(TopicPartition(position.topic, position.partition, offset))


class Sender(Client):
    """Sends records with an idempotent producer, without transactions, several at a time.

    The successor of a broken producer has a process name of its own: nothing fences requests of the broken one.
    """

    def __init__(self, process: str, servers: str, names: Names, recorder: Recorder, seed: int) -> None:
        self._count = 0
        self._lives = 0
        self._under_way: dict[str, tuple[_Sent, float]] = {}
        super().__init__(process, servers, names, recorder, seed)

    def unfinished(self) -> list[Transaction]:
        waiting = list(self._under_way.values())
        return [self._operation(sent, Outcome.INFO, begin, "not acknowledged") for sent, begin in waiting]

    def work(self) -> None:
        producer = Producer(self.config(enable_idempotence=True, linger_ms=5, message_timeout_ms=30_000))
        self._under_way = {}
        self._lives += 1
        try:
            while not self.recorder.over.wait(self.random.random() * _PACE_SECONDS):
                producer.poll(0)
                if len(self._under_way) < _SENDS_IN_FLIGHT:
                    self._send(producer)
            producer.flush(_PATIENCE_SECONDS)
        finally:
            for operation in self.unfinished():
                self.recorder.add(operation)

    def _send(self, producer: Producer) -> None:
        self._count += 1
        sent = _Sent(self.names.source, self.random.randrange(PARTITIONS), f"{self.process}.{self._count}")
        self._under_way[sent.value] = sent, self.recorder.now()
        data = encoded(sent.value, "", self.random.randint(*_SIZES))
        producer.produce(sent.topic, data, partition=sent.partition, on_delivery=partial(self._delivered, sent))

    def _delivered(self, sent: _Sent, error: KafkaError | None, message: Message) -> None:
        sent.delivered(error, message)
        waiting = self._under_way.pop(sent.value, None)
        if waiting is not None:
            outcome, text = (Outcome.OK, "") if error is None else (Outcome.INFO, str(error))
            self.recorder.add(self._operation(sent, outcome, waiting[1], text))

    def _operation(self, sent: _Sent, outcome: Outcome, begin: float, error: str) -> Transaction:
        life = f"{self.process}#{self._lives}"
        return Transaction(life, outcome, (sent.write,), False, error, begin, self.recorder.now())


class Reader(Client):
    """Reads all partitions from their beginning. A successor of a broken reader has a name of its own."""

    def __init__(self, process: str, servers: str, names: Names, recorder: Recorder, seed: int, *, committed: bool) -> None:
        self._committed = committed
        self._lives = 0
        super().__init__(process, servers, names, recorder, seed)

    def work(self) -> None:
        self._lives += 1
        life = f"{self.process}#{self._lives}"
        isolation = "read_committed" if self._committed else "read_uncommitted"
        settings = {"group_id": f"{self.names.run}-{self.process}", "enable_auto_commit": False}
        consumer = Consumer(self.config(isolation_level=isolation, auto_offset_reset="earliest", **settings))
        try:
            consumer.assign(self.names.partitions())
            while not self.recorder.over.is_set():
                messages = consumer.consume(200, timeout=0.5)
                records = tuple(record_of(message) for message in messages if not message.error())
                if records:
                    self.recorder.add(Poll(life, self._committed, records))
        finally:
            consumer.close()
