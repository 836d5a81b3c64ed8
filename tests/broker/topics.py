"""Topics that tests write to."""

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.broker.records import PARTITIONS
from tests.weir_process import wait_until

TIMEOUT = 60.0


def create_topic(bootstrap_servers: str, topic: str, partitions: int = PARTITIONS, replicas: int = 1) -> str:
    """Create a topic and return its name once every leader serves it. Earlier records with acks=0 could be lost."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, replication_factor=replicas)])[topic].result(TIMEOUT)
    wait_until(lambda: _is_served(admin, topic, partitions), f"leaders of {topic}", TIMEOUT)
    return topic


def create_topic_at(bootstrap_servers: str, topic: str, broker: int) -> str:
    """As `create_topic`, with the only copy of the only partition at this broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = NewTopic(topic, 1, replica_assignment=[[broker]], config={"min.insync.replicas": "1"})
    admin.create_topics([new])[topic].result(TIMEOUT)
    wait_until(lambda: _is_served(admin, topic, 1), f"leader of {topic}", TIMEOUT)
    return topic


def _is_served(admin: AdminClient, topic: str, partitions: int) -> bool:
    ends = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    try:
        return all(future.result(TIMEOUT).offset == 0 for future in admin.list_offsets(ends).values())
    except KafkaException:
        return False  # its leaders are unknown or do not know the topic yet
