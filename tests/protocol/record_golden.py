"""Records data/golden_frames.json: a real broker's response to every API and version that it offers to clients.

    python -m tests.protocol.record_golden

Starts one KRaft node in a temporary directory. Each request uses a connection of its own. The newest version of each API
is recorded twice. The second client is over its request quota (KIP-124), so that its frames hold a throttle time.
"""

import base64
import json
import socket
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from loadtest.testkit.kafka import KafkaCluster
from protocol.api_keys import APIS, ApiKey
from tests.protocol import codec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder

OUTPUT = codec.DATA / "golden_frames.json"
TOPIC = "golden"
FREE, SLOW = "golden", "golden-slow"
TIMEOUT_S = 10.0
CORRELATION_ID = 4711
COORDINATOR_NOT_READY = (14, 15, 16)


class Recorder:
    """Sends requests to the broker at `port`. `topic_id` is that of TOPIC, once TOPIC exists."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.topic_id = UUID(int=0)

    def exchange(self, key: int, version: int, values: dict[str, Any], client_id: str = FREE) -> bytes:
        """Return the whole response frame. Raises OSError if the broker closes the connection or takes too long."""
        with socket.create_connection(self.address, TIMEOUT_S) as connection:
            connection.sendall(codec.encode_request(key, version, values, CORRELATION_ID, client_id))
            with connection.makefile("rb") as stream:
                prefix = stream.read(4)
                if len(prefix) < 4:
                    raise ConnectionError("closed instead of answered")
                return prefix + stream.read(struct.unpack(">i", prefix)[0])

    def ask(self, key: int, version: int, values: dict[str, Any]) -> dict[str, Any]:
        return codec.decode_response(key, version, self.exchange(key, version, values))


def record_batch() -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset in range(3):
        builder.append(offset, 1_700_000_000_000 + offset, b"key", b"value-%d" % offset, [])
    return bytes(builder.build())


def topic_of(recorder: Recorder, version: int, id_since: int, **fields: Any) -> dict[str, Any]:
    return fields | ({"topic_id": recorder.topic_id} if version >= id_since else {"topic": TOPIC})


def produce(recorder: Recorder, version: int) -> dict[str, Any]:
    topic = {"topic_id": recorder.topic_id} if version >= 13 else {"name": TOPIC}
    partitions = [{"index": 0, "records": record_batch()}, {"index": 99, "records": record_batch()}]
    return {"acks": -1, "timeout_ms": 5000, "topic_data": [{**topic, "partition_data": partitions}]}


def fetch(recorder: Recorder, version: int) -> dict[str, Any]:
    partitions = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 400} for index in (1, 0, 99)]
    topics = [topic_of(recorder, version, 13, partitions=partitions)]
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "topics": topics}


def share_fetch(recorder: Recorder, version: int) -> dict[str, Any]:
    topics = [{"topic_id": recorder.topic_id, "partitions": [{"partition_index": 0}, {"partition_index": 1}]}]
    limits = {"max_wait_ms": 2000, "min_bytes": 1, "max_bytes": 1000, "max_records": 10, "batch_size": 10}
    return {"group_id": "share", "member_id": f"member-{version}", "share_session_epoch": 0, "topics": topics, **limits}


def share_acknowledge(recorder: Recorder, version: int) -> dict[str, Any]:
    batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    partitions = [{"partition_index": index, "acknowledgement_batches": batches} for index in (0, 99)]
    topics = [{"topic_id": recorder.topic_id, "partitions": partitions}]
    return {"group_id": "share", "member_id": f"member-{version}", "share_session_epoch": 1, "topics": topics}


def create_topics(_recorder: Recorder, version: int) -> dict[str, Any]:
    names = (f"created-{version}", TOPIC)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return {"topics": topics, "timeout_ms": 5000}


def find_coordinator(_recorder: Recorder, version: int) -> dict[str, Any]:
    return {"coordinator_keys": ["one", "two"]} if version >= 4 else {"key": "one"}


def offset_fetch(recorder: Recorder, version: int) -> dict[str, Any]:
    topics = [topic_of(recorder, version, 10, partition_indexes=[0])]
    if version < 8:
        return {"group_id": "group", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    topics = [{"name": TOPIC, "partition_indexes": [0]}] if version < 10 else topics
    return {"groups": [{"group_id": "group", "topics": topics}]}


def offset_commit(recorder: Recorder, version: int) -> dict[str, Any]:
    topic = {"topic_id": recorder.topic_id} if version >= 10 else {"name": TOPIC}
    partitions = [{"partition_index": 0, "committed_offset": 1}]
    return {"group_id": "group", "topics": [{**topic, "partitions": partitions}], "generation_id_or_member_epoch": -1}


def delete_topics(_recorder: Recorder, version: int) -> dict[str, Any]:
    return {"topics": [{"name": "no-such"}]} if version >= 6 else {"topic_names": ["no-such"]}


def add_partitions_to_txn(_recorder: Recorder, version: int) -> dict[str, Any]:
    topics = [{"name": TOPIC, "partitions": [0]}]
    if version < 4:
        return {"v3_and_below_transactional_id": "txn", "v3_and_below_topics": topics}
    return {"transactions": [{"transactional_id": "txn", "producer_id": 1, "topics": topics}]}


def join_group(_recorder: Recorder, version: int) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": b"x"}]
    timeouts = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 6000}
    return {"group_id": f"join-{version}", "protocol_type": "consumer", "protocols": protocols, **timeouts}


def consumer_group_heartbeat(_recorder: Recorder, version: int) -> dict[str, Any]:
    member = {"group_id": "consumer", "member_id": f"member-{version}", "member_epoch": 0}
    return {**member, "rebalance_timeout_ms": 5000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}


def share_group_heartbeat(_recorder: Recorder, version: int) -> dict[str, Any]:
    return {"group_id": "share", "member_id": f"member-{version}", "subscribed_topic_names": [TOPIC]}


Body = Callable[[Recorder, int], dict[str, Any]]


def same(**values: Any) -> Body:
    """Return a body for all versions."""
    return lambda _recorder, _version: values


ONE_PARTITION = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
CONFIG = {"resource_type": 2, "resource_name": TOPIC}
SOFTWARE = {"client_software_name": "golden", "client_software_version": "1"}
ACL = {"resource_type": 2, "resource_name": "a", "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}

# Every other API gets a request with default values, which a broker answers as well.
BODIES: dict[int, Body] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: same(replica_id=-1, topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]),
    ApiKey.METADATA: same(topics=[{"name": TOPIC}]),
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: same(group_id="group", member_id="member"),
    ApiKey.DESCRIBE_GROUPS: same(groups=["group", "no-such"]),
    ApiKey.API_VERSIONS: same(**SOFTWARE),
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: same(topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]),
    ApiKey.INIT_PRODUCER_ID: same(transactional_id=None, transaction_timeout_ms=1000),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: same(
        replica_id=-1, topics=[{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: same(transactional_id="txn", producer_id=1, group_id="group"),
    ApiKey.END_TXN: same(transactional_id="txn", producer_id=1),
    ApiKey.DESCRIBE_ACLS: same(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1),
    ApiKey.CREATE_ACLS: same(creations=[ACL]),
    ApiKey.DESCRIBE_CONFIGS: same(resources=[{**CONFIG, "configuration_keys": ["retention.ms", "cleanup.policy"]}]),
    ApiKey.ALTER_CONFIGS: same(resources=[{**CONFIG, "configs": [{"name": "retention.ms", "value": "1000000"}]}]),
    ApiKey.DESCRIBE_LOG_DIRS: same(topics=[{"topic": TOPIC, "partitions": [0]}]),
    ApiKey.CREATE_PARTITIONS: same(topics=[{"name": "no-such", "count": 4}], timeout_ms=1000),
    ApiKey.DELETE_GROUPS: same(groups_names=["no-such"]),
    ApiKey.ELECT_LEADERS: same(topic_partitions=[{"topic": TOPIC, "partitions": [0]}], timeout_ms=1000),
    ApiKey.OFFSET_DELETE: same(group_id="group", topics=ONE_PARTITION),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: same(components=[]),
    ApiKey.DESCRIBE_QUORUM: same(
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    ),
    ApiKey.DESCRIBE_PRODUCERS: same(topics=[{"name": TOPIC, "partition_indexes": [0]}]),
    ApiKey.UNREGISTER_BROKER: same(broker_id=999),
    ApiKey.DESCRIBE_TRANSACTIONS: same(transactional_ids=["txn"]),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: same(group_ids=["consumer", "no-such"]),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: same(topics=[{"name": TOPIC}]),
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: same(group_ids=["share", "no-such"]),
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
    ApiKey.STREAMS_GROUP_DESCRIBE: same(group_ids=["no-such"]),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: same(groups=[{"group_id": "share", "topics": None}]),
}


def prepare(recorder: Recorder) -> None:
    """Create a topic, a share group that reads from its start, a group coordinator, and the slow client's quota."""
    topic = {"name": TOPIC, "num_partitions": 2, "replication_factor": 1}
    created = recorder.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 5000})
    recorder.topic_id = created["topics"][0]["topic_id"]
    earliest = {"name": "share.auto.offset.reset", "value": "earliest", "config_operation": 0}
    share_group = {"resource_type": 32, "resource_name": "share", "configs": [earliest]}
    recorder.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [share_group]})
    while recorder.ask(ApiKey.HEARTBEAT, 4, {"group_id": "group"})["error_code"] in COORDINATOR_NOT_READY:
        recorder.ask(ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": ["group"]})  # creates the offsets topic
        time.sleep(0.2)
    slow = {"entity": [{"entity_type": "client-id", "entity_name": SLOW}]}
    quota = {"ops": [{"key": "request_percentage", "value": 0.0001, "remove": False}]}
    recorder.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [slow | quota]})


def offered(recorder: Recorder) -> list[tuple[int, int]]:
    """Return each (API key, version) that the broker, the codec and the gateway's table know, in order."""
    answer = recorder.ask(ApiKey.API_VERSIONS, 3, SOFTWARE)
    ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]}
    known = sorted(key for key in ranges if key in codec.KEYS and key in APIS)
    return [(key, v) for key in known for v in range(ranges[key][0], ranges[key][1] + 1)]


def record(recorder: Recorder) -> list[dict[str, Any]]:
    prepare(recorder)
    pairs = offered(recorder)
    newest = dict(pairs)
    rows = []
    for client_id, wanted in ((FREE, pairs), (SLOW, list(newest.items()))):
        for key, version in wanted:
            values = BODIES.get(key, same())(recorder, version)
            try:
                frame = recorder.exchange(key, version, values, client_id)
                codec.decode_response(key, version, frame)
            except (OSError, ValueError, struct.error) as error:
                sys.stderr.write(f"{APIS[key].name} v{version}: {error!r}\n")
                continue
            row = {"api_key": key, "version": version, "client": client_id}
            rows.append(row | {"frame": base64.b64encode(frame).decode()})
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, KafkaCluster(Path(directory)) as cluster:
        node = cluster.brokers[0]
        rows = record(Recorder("127.0.0.1", node.port))
    OUTPUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
