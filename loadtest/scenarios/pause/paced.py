"""`python -m loadtest.scenarios.pause.paced LIBRARY SERVERS TOPIC RECORDS PER_SECOND`: sends numbered records at a steady
rate.

Prints the number of failed records, and the first error.
"""

import asyncio
import sys
import time
from collections.abc import Iterator

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer


def _records(count: int, pace: float) -> Iterator[tuple[int, int, bytes, float]]:
    """(number, partition, value, seconds until it is due) of each record."""
    begun = time.monotonic()
    for number in range(count):
        yield number, number % 2, b"%08d" % number + bytes(992), max(0.0, begun + number / pace - time.monotonic())


def librdkafka(servers: str, topic: str, count: int, pace: float, **settings: object) -> list[object]:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": servers, **settings})
    for _, partition, value, early in _records(count, pace):
        producer.poll(early)
        time.sleep(0 if early == 0 else 0.0001)
        producer.produce(topic, value, partition=partition, callback=lambda error, _: failed.append(error) if error else None)
    failed += ["not flushed"] * producer.flush(300)
    return failed


def kafka_python(servers: str, topic: str, count: int, pace: float) -> list[object]:
    failed: list[object] = []
    producer = KafkaProducer(bootstrap_servers=servers)
    for _, partition, value, early in _records(count, pace):
        time.sleep(early)
        producer.send(topic, value, partition=partition).add_errback(failed.append)
    producer.flush(300)
    producer.close()
    return failed


async def aiokafka(servers: str, topic: str, count: int, pace: float) -> list[object]:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        sent = []
        for _, partition, value, early in _records(count, pace):
            await asyncio.sleep(early)
            sent.append(await producer.send(topic, value, partition=partition))
        results = await asyncio.gather(*sent, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]


def main() -> None:
    library, servers, topic, count, pace = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
    if library == "aiokafka":
        failed = asyncio.run(aiokafka(servers, topic, count, pace))
    elif library == "kafka-python":
        failed = kafka_python(servers, topic, count, pace)
    else:
        idempotent = library == "librdkafka-idempotent"
        failed = librdkafka(servers, topic, count, pace, **{"enable.idempotence": idempotent})
    print("failed", len(failed), repr(failed[0]) if failed else None)


if __name__ == "__main__":
    main()
