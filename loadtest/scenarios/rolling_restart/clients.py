"""Producers and consumers of three libraries. Each records its acknowledgements, their times, and its errors."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Message, Producer

from loadtest.testkit.kafka import VerifiableProducer, start_tool

PER_SECOND = 200
"""Records per second of each producer."""

WITHOUT_ANSWERS = "without-answers"
"""The name for the topic of the producer with acks=0."""

_TIMEOUT = 60.0


class Client:
    """One producer or consumer. `times` (monotonic seconds) are those of acknowledgements or received records."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.values: Counter[str] = Counter()
        self.errors: list[str] = []

    def note(self, value: str) -> None:
        """Record an acknowledgement or a received record."""
        self.times.append(time.monotonic())
        self.values[value] += 1

    def has(self, values: Collection[str]) -> bool:
        """True if the client has all of these records."""
        return self.values.keys() >= set(values)

    def stop(self) -> None:
        """Stop, and wait until nothing is in flight."""
        raise NotImplementedError


class JavaProducer(Client):
    """Kafka's VerifiableProducer: acks=all and idempotent."""

    def __init__(self, servers: str, directory: Path) -> None:
        super().__init__("producer-java")
        self._producer = VerifiableProducer(directory, servers, topic("java"), self._acknowledge, per_second=PER_SECOND)
        self.errors = self._producer.errors

    def _acknowledge(self, _partition: int, _offset: int, value: str) -> None:
        self.note(value)

    def stop(self) -> None:
        """Send SIGTERM, and wait for the requests in flight."""
        self._producer.stop(_TIMEOUT)


class JavaConsumer(Client):
    """Kafka's VerifiableConsumer in a group that reads from the start of the log."""

    def __init__(self, servers: str) -> None:
        super().__init__("consumer-java")
        self._tool = start_tool(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", servers, "--topic", topic("java")),
            *("--group-id", "rolling-java", "--reset-policy", "earliest", "--verbose"),
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._tool:
            event: dict[str, Any] = json.loads(line)
            if event["name"] == "record_data":
                self.note(event["value"])
            elif not event.get("success", True):
                self.errors.append(line)

    def stop(self) -> None:
        """Send SIGTERM. The tool then leaves its group."""
        self._tool.stop(timeout=_TIMEOUT)
        self._thread.join()


class LibrdkafkaProducer(Client):
    """Produces at an even rate; acks=all and idempotent, or acks=0 without `answers`.

    Errors are those of records; `error_cb` is only informative.
    """

    def __init__(self, servers: str, *, answers: bool = True) -> None:
        super().__init__("producer-librdkafka" if answers else "producer-without-answers")
        self._topic = topic("librdkafka" if answers else WITHOUT_ANSWERS)
        self._stopped = threading.Event()
        kind = {"enable.idempotence": True} if answers else {"acks": 0}
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **kind})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.note((message.value() or b"").decode())
        else:
            self.errors.append(str(error))

    def _run(self) -> None:
        begin, number = time.monotonic(), 0
        while not self._stopped.is_set():
            while number < (time.monotonic() - begin) * PER_SECOND:
                self._producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.005)

    def stop(self) -> None:
        """Wait for the requests in flight."""
        self._stopped.set()
        self._thread.join()
        if left := self._producer.flush(_TIMEOUT):
            self.errors.append(f"{left} records are not acknowledged")
        del self._producer  # stops its reconnects


class LibrdkafkaConsumer(Client):
    """A consumer in a group that reads from the start of the log."""

    def __init__(self, servers: str) -> None:
        super().__init__("consumer-librdkafka")
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "rolling-librdkafka", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe([topic("librdkafka")])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(100, timeout=0.02):
                if (error := message.error()) is None:
                    self.note((message.value() or b"").decode())
                elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    self.errors.append(str(error))

    def stop(self) -> None:
        """Leave the group."""
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


class AiokafkaClients:
    """A producer (acks=all, idempotent) and a consumer in a group, in their own event loop."""

    def __init__(self, servers: str) -> None:
        self.producer, self.consumer = _Half("producer-aiokafka"), _Half("consumer-aiokafka")
        self._servers = servers
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        async with AsyncExitStack() as open_clients:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._servers, acks="all", enable_idempotence=True, linger_ms=5
            )
            consumer = aiokafka.AIOKafkaConsumer(
                topic("aiokafka"), bootstrap_servers=self._servers, group_id="rolling-aiokafka", auto_offset_reset="earliest"
            )
            await producer.start()
            open_clients.push_async_callback(producer.stop)
            await consumer.start()
            open_clients.push_async_callback(consumer.stop)
            await asyncio.gather(self._produce(producer), self._consume(consumer))

    async def _produce(self, producer: aiokafka.AIOKafkaProducer) -> None:
        begin, number = time.monotonic(), 0
        under_way: set[asyncio.Task[None]] = set()
        while not self.producer.stopped.is_set():
            while number < (time.monotonic() - begin) * PER_SECOND:
                task = asyncio.create_task(self._send(producer, str(number)))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                number += 1
            await asyncio.sleep(0.005)
        if under_way:
            await asyncio.wait(under_way, timeout=_TIMEOUT)
        if under_way:
            self.producer.errors.append(f"{len(under_way)} records are not acknowledged")
        self.producer.done.set()

    async def _send(self, producer: aiokafka.AIOKafkaProducer, value: str) -> None:
        try:
            await producer.send_and_wait(topic("aiokafka"), value.encode())
        except AiokafkaError as error:
            self.producer.errors.append(repr(error))
        else:
            self.producer.note(value)

    async def _consume(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        while not self.consumer.stopped.is_set():
            try:
                records = await consumer.getmany(timeout_ms=20)
            except AiokafkaError as error:
                self.consumer.errors.append(repr(error))
                continue
            for partition in records.values():
                for record in partition:
                    self.consumer.note((record.value or b"").decode())
        self.consumer.done.set()

    def join(self) -> None:
        """Wait for the end of the loop, after both clients were stopped."""
        self._thread.join(_TIMEOUT)


class _Half(Client):
    """The producer or the consumer. `stop` passes the request to the event loop."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stopped = threading.Event()
        self.done = threading.Event()

    def stop(self) -> None:
        """Stop, and wait for the requests in flight."""
        self.stopped.set()
        if not self.done.wait(_TIMEOUT):
            self.errors.append("the client does not stop")


def topic(library: str) -> str:
    """The topic of a library's producer and consumer."""
    return f"rolling-{library}"
