"""A topic of one partition in memory, behind the interface of `OwnClient`, for tests of `TopicLog` and its users."""

import asyncio
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.memory_records import MemoryRecords

from gateway import clock
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import ClusterLook, TopicLook
from gateway.cluster.requests import BrokerRequest
from protocol.error_codes import ErrorCode

BROKER = {1: ("127.0.0.1", 9092)}
EARLIEST = -2


class KeptTopic:
    """`connect` is for a TopicLog. `batches` are as they were sent, which is where offsets and what is damaged come from.

    `open` are the numbers of the clients that have not been closed. `fails` is called with each Produce
    request's number, from 1 on: True, and the broker is gone. `refusal` is the error code of each Produce. `has_end` is
    False while the broker does not say where the topic ends. Without `reachable`, each request fails; without `describes`,
    each DescribeConfigs. `disks` are the used bytes of 1000 by broker, for DescribeLogDirs; a broker in `hung` does not
    answer that before its event. `usual_replicas` is the brokers' default, None if they do not show it. `replicas` is the
    topic's.
    """

    def __init__(self):
        self.batches = []
        self.exists = True
        self.configs = {}
        self.describes = True
        self.generation = 1
        self.produced = 0
        self.fails = lambda number: False
        self.refusal = 0
        self.has_end = True
        self.reachable = True
        self.brokers = dict(BROKER)
        self.usual_replicas = None
        self.replicas = 0
        self.disks = {}
        self.hung = {}
        self.created = asyncio.Event()
        self.closed = asyncio.Event()
        self.open = set()
        self._numbers = count()
        self._changed = asyncio.Event()
        self._looked_at = float("-inf")

    def connect(self):
        number = next(self._numbers)

        async def close():
            self.open.discard(number)
            self.closed.set()

        self.open.add(number)
        return SimpleNamespace(look=self._look, ask=self._ask, ask_any=self._ask_any, close=close)

    @contextmanager
    def subscribe(self, on_brokers=None, on_topics=None, on_failure=None, interval=None):
        on_brokers(self.brokers)
        yield

    def delete(self):
        self.exists = False
        self.batches = []
        self.generation += 1
        self._wake()

    def lose(self, batches):
        """Lose the last batches, as in an unclean election. The topic keeps its id."""
        del self.batches[-batches:]

    def records(self):
        """Key, value and any headers of all records, oldest first."""
        read = MemoryRecords(b"".join(self.batches))
        found = []
        while read.has_next():
            found += [(record.key, record.value, *record.headers) for record in read.next_batch()]
        return found

    def append(self, batch, size, *, wakes=True):
        """Give a batch of `size` records its offsets, as the broker does. Returns the first offset.

        Without `wakes`, readers that wait get the batch late.
        """
        first = self._end()
        self.batches.append(first.to_bytes(8, "big") + bytes(batch[8:57]) + size.to_bytes(4, "big") + bytes(batch[61:]))
        if wakes:
            self._wake()
        return first

    def _end(self):
        return sum(int.from_bytes(each[57:61], "big") for each in self.batches)

    def _wake(self):
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _look(self, topic=None, *, max_age=0.0):
        now = clock.monotonic()
        if max_age <= 0.0 or now - self._looked_at > max_age:
            self._looked_at = now
            self._last = ClusterLook(self.brokers, TopicLook(bytes([self.generation]), (1,)) if self.exists else None)
        return self._last

    async def _ask(self, node_id, request):
        if not self.reachable:
            raise ClusterError("the network is lost")
        match request:
            case ProduceRequest():
                return self._produce(request)
            case FetchRequest():
                return await self._fetch(request)
            case OffsetRequest():
                return self._offset(request)
            case DescribeConfigsRequest() if self.usual_replicas is not None:
                config = ("default.replication.factor", str(self.usual_replicas))
                return SimpleNamespace(resources=[(0, None, 4, str(node_id), [config])])
            case BrokerRequest() if node_id in self.disks:
                if node_id in self.hung:
                    await self.hung[node_id].wait()
                disk = SimpleNamespace(error_code=0, log_dir="/data", total_bytes=1000, usable_bytes=1000 - self.disks[node_id])
                return SimpleNamespace(error_code=0, results=[disk])
        raise ClusterError(f"nobody here answers {request}")

    async def _ask_any(self, request):
        match request:
            case CreateTopicsRequest():
                self.exists = True
                _, _, self.replicas, _, configs = request.create_topic_requests[0]
                self.configs = dict(configs)
                self.created.set()
                return SimpleNamespace(topic_errors=[("topic", 0)])
            case DescribeConfigsRequest():
                if not self.describes:
                    raise ClusterError("the broker is gone")
                name = request._resources[0][1]
                return SimpleNamespace(resources=[(0, None, 2, name, list(self.configs.items()))])
        raise NotImplementedError(request)

    def _produce(self, request):
        self.produced += 1
        if self.fails(self.produced):
            raise ClusterError("the broker is gone")
        ((topic, ((partition, batch),)),) = request._topics
        refusal = self.refusal if self.exists else 3
        if refusal:
            return SimpleNamespace(topics=[(topic, [(partition, refusal, -1)])])
        return SimpleNamespace(topics=[(topic, [(partition, 0, self.append(batch, int.from_bytes(batch[57:61], "big")))])])

    def _offset(self, request):
        ((topic, ((partition, wanted),)),) = request._topics
        if wanted != EARLIEST and not self.has_end:
            raise ClusterError("the broker is gone")
        code = 0 if self.exists else 3
        return SimpleNamespace(topics=[(topic, [(partition, code, -1, 0 if wanted == EARLIEST else self._end())])])

    async def _fetch(self, request):
        ((topic, ((partition, offset, _),)),) = request.topics
        if self.exists and offset > self._end():
            return SimpleNamespace(topics=[(topic, [(partition, ErrorCode.OFFSET_OUT_OF_RANGE, -1, b"")])])
        generation = self.generation
        if offset >= self._end():
            changed = self._changed
            try:
                async with asyncio.timeout(0.05):
                    await changed.wait()
            except TimeoutError:
                pass
        if not self.exists or generation != self.generation:
            return SimpleNamespace(topics=[(topic, [(partition, 3, -1, b"")])])
        batches = [
            each for each in self.batches if int.from_bytes(each[:8], "big") + int.from_bytes(each[57:61], "big") > offset
        ]
        return SimpleNamespace(topics=[(topic, [(partition, 0, self._end(), b"".join(batches))])])
