"""The volume usage topic on a stub broker: the test decides how full the disks are and which brokers are alive."""

import asyncio
import time
from typing import Any

from gateway.cluster.record_batches import batches_of
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.usage_message import encode_usage
from protocol.api_keys import ApiKey
from tests.gateway.cluster.kept_topic import KeptTopic
from tests.hostile.stub_broker import HOST, NODE_ID, Request, StubBroker, produced

TOPIC = "__weir_volume_usage"
HARD, SOFT = Limit(LimitType.CONSUMED_SPACE, 900), Limit(LimitType.CONSUMED_SPACE, 500)
FULL, ROOM = 950, 100
_OWN_VERSION = 12
"""The version of the Metadata requests of `OwnClient`."""
_FETCH_SECONDS = 0.02


class UsageTopic:
    """Adds the topic to `broker`.

    `alive` holds the node ids in answers to the volume watch; `looks` counts those answers. The stub answers other
    Metadata requests.
    While `refuses` is set, the topic refuses records.
    """

    def __init__(self, broker: StubBroker) -> None:
        self.alive = [NODE_ID]
        self.looks = 0
        self.refuses = False
        self._broker = broker
        self._records = KeptTopic()
        self._others = dict(broker.answers)
        mine = {ApiKey.METADATA: self._metadata, ApiKey.FETCH: self._fetch, ApiKey.PRODUCE: self._produce}
        broker.answers |= {**mine, ApiKey.DESCRIBE_CONFIGS: lambda request: request.answer(results=[])}

    def publish(self, consumed: int, *, broker: int = NODE_ID, age: float = 0.0) -> None:
        """Append the usage of a broker with one volume of 1000 bytes, captured `age` seconds ago."""
        usage = VolumeUsage(broker, time.time() - age, HARD, SOFT, (Volume("/data", 1000, consumed),))
        for batch, count in batches_of([encode_usage(usage)]):
            self._records.append(batch, count)

    def keys(self) -> list[bytes | None]:
        """Return the keys of all records, oldest first."""
        return [key for key, _ in self._records.records()]

    def _metadata(self, request: Request) -> Any:
        topics = None if request.version < _OWN_VERSION else request.decode().topics
        is_look = topics == []
        if not is_look and (topics is None or [topic.name for topic in topics] != [TOPIC]):
            return self._others[ApiKey.METADATA](request)
        self.looks += is_look
        alive = self.alive if is_look else [NODE_ID]
        brokers = [{"node_id": node, "host": HOST, "port": self._broker.port} for node in alive]
        partition = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": NODE_ID,
            "replica_nodes": [NODE_ID],
            "isr_nodes": [NODE_ID],
        }
        topic = {"error_code": 0, "name": TOPIC, "topic_id": "0" * 31 + "1", "partitions": [partition]}
        return request.answer(brokers=brokers, controller_id=NODE_ID, topics=[] if is_look else [topic])

    async def _fetch(self, request: Request) -> bytes | None:
        (topic,) = request.decode().topics
        if topic.topic != TOPIC:
            return self._others[ApiKey.FETCH](request)  # type: ignore[return-value]
        (partition,) = topic.partitions
        first = [int.from_bytes(batch[:8], "big") for batch in self._records.batches]
        data = b"".join(batch for at, batch in zip(first, self._records.batches, strict=True) if at >= partition.fetch_offset)
        if not data:
            await asyncio.sleep(_FETCH_SECONDS)
        answer = {"partition_index": 0, "error_code": 0, "high_watermark": len(first), "records": data}
        return request.answer(responses=[{"topic": TOPIC, "partitions": [answer]}])

    def _produce(self, request: Request) -> Any:
        (topic,) = request.decode().topic_data
        if topic.name != TOPIC:
            return produced(request)
        if self.refuses:
            refusal = {"index": 0, "error_code": 19, "base_offset": -1}
            return request.answer(responses=[{"name": TOPIC, "partition_responses": [refusal]}])
        (partition,) = topic.partition_data
        batch = bytes(partition.records)
        first = self._records.append(batch, int.from_bytes(batch[57:61], "big"))
        answer = {"index": 0, "error_code": 0, "base_offset": first}
        return request.answer(responses=[{"name": TOPIC, "partition_responses": [answer]}])
