"""`python -m loadtest.scenarios.group_members.librdkafka SERVERS TOPIC GROUP PROTOCOL MEMBERS`: members of one group.

They read and commit until the process is killed. The process prints a line for each rebalance.
"""

import sys
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition


def consume(servers: str, topic: str, group: str, protocol: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "client.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )

    def report(event: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: print(event, flush=True) if partitions else None

    consumer.subscribe([topic], on_assign=report("assigned"), on_revoke=report("revoked"), on_lost=report("lost"))
    while True:
        records = [record for record in consumer.consume(1_000, 0.5) if record.error() is None]
        if records:
            print("records", len(records), flush=True)


if __name__ == "__main__":
    *arguments, members = sys.argv[1:]
    for _ in range(int(members)):
        threading.Thread(target=consume, args=arguments).start()
