"""The cluster as clients' connections see it: brokers that answer requests in order, and remember what gateways forward."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from loadtest.simulation import kafka_messages as kafka
from loadtest.simulation import topic_messages
from loadtest.simulation.kafka_messages import Api, Frames, Head
from loadtest.simulation.network import Network, Verdicts
from loadtest.simulation.sockets import Line, SimulatedSocket
from loadtest.simulation.topic_messages import Batches
from loadtest.simulation.transports import SimulatedTransport

PORT = 9092
FIRST_BROKER_PORT = 9100
"""A gateway's port of the broker with the node id 0."""

MAX_BATCHES = 40
SESSION_ID_FROM = 1_000


@dataclass(slots=True)
class Sent:
    """A request that a client has sent, and its fate."""

    frame: bytes
    head: Head
    acks: int
    connection: int
    forwarded: int = 0
    answered: bool = False


@dataclass(slots=True)
class Alteration:
    """A quota that an operator has set through the quota API. `value` None removes it. Times are monotonic seconds."""

    target: str
    key: str
    value: int | None
    sent: float
    confirmed: float | None = None


class Cluster:
    """All brokers. `sent` has the clients' requests by number, `alterations` those of quotas."""

    def __init__(self, network: Network, brokers: int, verdicts: Verdicts) -> None:
        self.network = network
        self.verdicts = verdicts
        self.sent: dict[int, Sent] = {}
        self.alterations: dict[int, Alteration] = {}
        self.brokers = [Broker(self, node) for node in range(1, brokers + 1)]
        self.created: Counter[str] = Counter()  # partitions by client-id
        self.batches = Batches()  # of Produce requests of several topics
        self.nobody_waits = False  # all limits are shadow limits
        self.peers: set[str] = set()  # the addresses of all connections of clients

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """The brokers that are up."""
        return {broker.node: (broker.host, PORT) for broker in self.brokers if broker.up}

    def forwarded(self, head: Head, frame: bytes) -> None:
        """Check a request that a gateway has forwarded."""
        sent = self.sent.get(head.number)
        if sent is None:
            self.verdicts.fail("unknown request", f"a broker got request {head.number}, which no client has sent")
            return
        sent.forwarded += 1
        if sent.forwarded > 1:
            self.verdicts.fail("forwarded twice", f"request {head.number} ({Api(head.api).name})")
        same = frame == sent.frame
        if not same and head.api == Api.FETCH:
            same = kafka.kept_of_fetch(frame, head) == kafka.kept_of_fetch(sent.frame, sent.head)
        if head.number in self.batches.sent:
            same = self.batches.forward(frame, head)
        if not same and head.api == Api.CREATE_TOPICS:
            same = set(kafka.topics_in(frame, head)) <= set(kafka.topics_in(sent.frame, sent.head))
        if not same:
            self.verdicts.fail("changed request", f"request {head.number} ({Api(head.api).name}) was changed on its way")


class Broker:
    """One broker. It listens while it is `up`."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.host = f"broker-{node}"
        self.up = False
        self.connections: dict[BrokerConnection, None] = {}
        self.line = Line(f"{cluster.network.seed}-broker-{node}")
        self.start()

    def start(self) -> None:
        if not self.up:
            self.up = True
            self.cluster.network.serve((self.host, PORT), self._accept)

    def stop(self) -> None:
        """The broker's process is killed."""
        self.up = False
        self.cluster.network.stop_listening((self.host, PORT))
        for connection in list(self.connections):
            connection.transport.connection.close()
            connection.transport.connection.on_event = None
        self.connections.clear()

    def _accept(self, connection: SimulatedSocket) -> None:
        self.cluster.network.adopt(lambda: BrokerConnection(self), connection)


class BrokerConnection(asyncio.Protocol):
    """A gateway's connection. Responses keep the order of the requests."""

    transport: SimulatedTransport

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._frames = Frames()
        self._answer_at = 0.0
        self._answers: deque[bytes] = deque()
        self._last_number = -1
        self._session_id = 0  # of the connection's fetch session; 0 without one
        self._epoch = -1  # of that session; -1 without one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport
        self._broker.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.pop(self, None)

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.add(data):
            answer = self._answer(frame)
            if answer is not None:
                self._later(answer)

    def _later(self, answer: bytes) -> None:
        now = self._cluster.network.now()
        line = self._broker.line
        self._answer_at = max(self._answer_at, now + line.delay())
        self._answers.append(answer)
        # Two timers of one moment may go off in any order, so each takes the oldest response.
        self._cluster.network.at(self._answer_at, lambda: self.transport.write(self._answers.popleft()))

    def _answer(self, frame: bytes) -> bytes | None:
        head = kafka.head_of(frame)
        number = head.number
        if head.api == Api.METADATA and head.version == kafka.OWN_METADATA:
            return kafka.described(number, head.version, kafka.names_in(frame, head.body), self._cluster.addresses)
        self._cluster.forwarded(head, frame)
        if number <= self._last_number:
            self._cluster.verdicts.fail("forwarded out of order", f"request {number} after {self._last_number}")
        self._last_number = number
        match head.api:
            case Api.PRODUCE if number in self._cluster.batches.sent:
                return topic_messages.produced(number, topic_messages.batches_in(frame, head))
            case Api.PRODUCE:
                return None if kafka.acks_of(frame, head) == 0 else kafka.produced(number)
            case Api.FETCH:
                return self._fetch(frame, head)
            case Api.HEARTBEAT:
                return kafka.beat(number)
            case Api.METADATA:
                return kafka.described(number, head.version, kafka.names_in(frame, head.body), self._cluster.addresses)
            case Api.SASL_HANDSHAKE:
                return kafka.handshaken(number)
            case Api.SASL_AUTHENTICATE:
                return kafka.authenticated(number)
            case Api.CREATE_TOPICS:
                topics = kafka.topics_in(frame, head)
                self._cluster.created[head.client_id] += sum(count for name, count in topics if not name.startswith(b"bad"))
                return kafka.created(number, topics)
        self._cluster.verdicts.fail("unknown request", f"a broker got API {head.api}")
        return None

    def _fetch(self, frame: bytes, head: Head) -> bytes:
        _, max_bytes, session_id, epoch = kafka.fetch_limits(frame, head)
        if epoch <= 0 and session_id not in (0, self._session_id):
            text = f"request {head.number} ends the session {session_id} instead of {self._session_id}"
            self._cluster.verdicts.fail("fetch session broken", text)
        if epoch == 0:
            self._epoch, self._session_id = 0, SESSION_ID_FROM + head.number
            session_id = self._session_id
        elif epoch > 0:
            if epoch != self._epoch + 1:
                text = f"request {head.number} has the epoch {epoch} after {self._epoch}"
                self._cluster.verdicts.fail("fetch session broken", text)
            self._epoch = epoch
        batches = max(1, min(MAX_BATCHES, max_bytes // kafka.BATCH_BYTES))
        return kafka.fetched(head.number, batches, session_id)
