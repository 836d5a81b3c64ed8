"""The gateways' own connections to the cluster: topics in memory behind the interface of aiokafka's connections.

Requests are not encoded here, because that would cost more than everything else. The records of topics are.
"""

import asyncio
from itertools import count
from struct import Struct
from types import SimpleNamespace
from typing import Any

from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest

from gateway.cluster.requests import BrokerRequest
from loadtest.simulation.brokers import Cluster
from loadtest.simulation.sockets import Line
from loadtest.simulation.topic_messages import CLIENT_TOPICS
from loadtest.simulation.virtual_loop import PROCESS

LOST_SECONDS = 1.0
"""The time after which a request over a lost network fails."""

_UNKNOWN_TOPIC, _TOPIC_EXISTS, _NOT_LEADER = 3, 36, 6
_METADATA, _WITH_IDS, _CREATE_TOPICS = 3, 12, 19
_EARLIEST = -2
_INT16, _INT32 = Struct(">h"), Struct(">i")


class Topic:
    """A topic of one partition. `batches` are record batches with the offset behind each."""

    def __init__(self, number: int, leader: int) -> None:
        self.topic_id = number.to_bytes(16, "big")
        self.leader = leader
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.changed = asyncio.Event()

    def append(self, batch: bytes, size: int) -> int:
        """Give a batch of `size` records its offsets, as a broker does. Returns the first one."""
        first = self.end
        self.end += size
        self.batches.append((self.end, first.to_bytes(8, "big") + batch[8:]))
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        return first


class OwnTopics:
    """The topics of the gateways themselves. `lost` are the processes that can't reach the cluster, `cut` counts for each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics: dict[str, Topic] = {}
        self.lost: set[str] = set()
        self._numbers = count(1)

    async def connect(self, host: str, port: int, **_: Any) -> "OwnConnection":
        """Takes the place of aiokafka's `create_conn`."""
        connection = OwnConnection(self, host)
        await connection.reach()
        return connection

    def create(self, name: str) -> bool:
        if name in self.topics:
            return False
        up = list(self.cluster.addresses)
        number = next(self._numbers)
        self.topics[name] = Topic(number, up[number % len(up)] if up else 1)
        return True

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            topic.changed.set()


class OwnConnection:
    """A connection of one process to one broker. Failures are OSErrors, which Weir takes for a lost connection."""

    def __init__(self, own: OwnTopics, host: str) -> None:
        process = PROCESS.get()
        assert process is not None
        self._own = own
        self._process = process
        self._broker = next(broker for broker in own.cluster.brokers if broker.host == host)
        self._line = Line(f"{own.cluster.network.seed}-{process.name}-{host}")
        self._open = True

    def connected(self) -> bool:
        return self._open and self._broker.up

    def close(self) -> None:
        self._open = False

    async def reach(self) -> None:
        """One way over the network. Raises OSError."""
        await asyncio.sleep(self._line.delay() + self._own.cluster.network.slow.get(self._broker.host, 0.0))
        if self._process.name in self._own.lost:
            await asyncio.sleep(LOST_SECONDS)
            raise OSError("the network is lost")
        if not (self._open and self._broker.up):
            raise ConnectionResetError("the broker is gone")

    async def send(self, request: Any) -> Any:
        await self.reach()
        answer = await self._answer(request)
        await self.reach()
        return answer

    async def _answer(self, request: Any) -> Any:
        match request:
            case FetchRequest():
                return await self._fetch(request)
            case ProduceRequest():
                return self._produce(request)
            case BrokerRequest():
                return self._describe(request)
            case CreateTopicsRequest():
                name = request.create_topic_requests[0][0]
                return SimpleNamespace(topic_errors=[(name, 0 if self._own.create(name) else _TOPIC_EXISTS)])
            case DescribeConfigsRequest():
                return SimpleNamespace(resources=[])
            case OffsetRequest():
                return self._offset(request)
        raise AssertionError(f"the simulation does not answer {request}")

    def _describe(self, request: Any) -> tuple[int, bytes]:
        """The version and the body of a Metadata response."""
        prepared = request.prepare({_METADATA: (0, _WITH_IDS), _CREATE_TOPICS: (0, 7)})
        wanted = request._fields["topics"]
        names = [*self._own.topics, *CLIENT_TOPICS] if wanted is None else [topic.name for topic in wanted]
        brokers = [
            _INT32.pack(node) + _text(host) + _INT32.pack(port) + b"\0\0"
            for node, (host, port) in self._own.cluster.addresses.items()
        ]
        topics = [self._described(name) for name in names]
        body = b"".join((bytes(4), _size(brokers), *brokers, b"\0", _INT32.pack(1), _size(topics), *topics, b"\0"))
        return prepared.API_VERSION, body

    def _described(self, name: str) -> bytes:
        topic = self._own.topics.get(name)
        if name in CLIENT_TOPICS:
            topic = Topic(0, self._broker.node)
            topic.topic_id = CLIENT_TOPICS[name]
        if topic is None:
            return _INT16.pack(_UNKNOWN_TOPIC) + _text(name) + bytes(16) + b"\0\1" + bytes(4) + b"\0"
        up = self._own.cluster.addresses
        if topic.leader not in up and up:
            topic.leader = next(iter(up))  # the controller elects another one
        partition = bytes(6) + _INT32.pack(topic.leader) + bytes(4) + b"\1\1\1\0"
        return bytes(2) + _text(name) + topic.topic_id + b"\0\2" + partition + bytes(4) + b"\0"

    def _known(self, name: str) -> Topic | int:
        topic = self._own.topics.get(name)
        if topic is None:
            return _UNKNOWN_TOPIC
        return topic if topic.leader == self._broker.node else _NOT_LEADER

    def _produce(self, request: ProduceRequest) -> Any:
        ((name, ((partition, batch),)),) = request._topics
        topic = self._known(name)
        if isinstance(topic, int):
            return SimpleNamespace(topics=[(name, [(partition, topic, -1)])])
        first = topic.append(batch, int.from_bytes(batch[57:61], "big"))
        self._own.cluster.network.say(f"{self._process.name} publishes {len(batch)} bytes in {name}")
        return SimpleNamespace(topics=[(name, [(partition, 0, first)])])

    def _offset(self, request: OffsetRequest) -> Any:
        """The end of the topic, or its beginning."""
        ((name, ((partition, wanted),)),) = request._topics
        topic = self._known(name)
        if isinstance(topic, int):
            return SimpleNamespace(topics=[(name, [(partition, topic, -1, -1)])])
        return SimpleNamespace(topics=[(name, [(partition, 0, -1, 0 if wanted == _EARLIEST else topic.end)])])

    async def _fetch(self, request: FetchRequest) -> Any:
        ((name, ((partition, offset, _),)),) = request.topics
        topic = self._known(name)
        if isinstance(topic, Topic) and offset >= topic.end:
            try:
                async with asyncio.timeout(request._max_wait_ms / 1000.0):
                    await topic.changed.wait()
            except TimeoutError:
                pass
            topic = self._known(name)
        if isinstance(topic, int):
            return SimpleNamespace(topics=[(name, [(partition, topic, -1, b"")])])
        records = b"".join(batch for end, batch in topic.batches if end > offset)
        return SimpleNamespace(topics=[(name, [(partition, 0, topic.end, records)])])


def _text(text: str) -> bytes:
    """A compact string of less than 127 bytes."""
    return bytes([len(text) + 1]) + text.encode()


def _size(rows: list[bytes]) -> bytes:
    """The length of a compact array of less than 127 rows."""
    return bytes([len(rows) + 1])
