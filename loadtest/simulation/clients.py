"""Clients: they send numbered requests, several at a time, and check that each response is the one that is due."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from loadtest.simulation import kafka_messages as kafka
from loadtest.simulation import topic_messages
from loadtest.simulation.balancer import WRONG, header, source_of
from loadtest.simulation.brokers import FIRST_BROKER_PORT, PORT, Alteration, Cluster, Sent
from loadtest.simulation.kafka_messages import Api, Frames
from loadtest.simulation.plan import Client
from loadtest.simulation.sockets import Line
from loadtest.simulation.transports import SimulatedTransport
from loadtest.simulation.virtual_loop import Process

RECONNECT_SECONDS: Final = 0.3
THINK_SECONDS: Final = 0.005
CONNECTIONS: Final = 1_000
"""The limit on the connections of one client: a connection's number is the client's times this, and its own."""
NUMBERS_PER_CONNECTION: Final = 10_000
PARTITIONS: Final = 3
_NOTHING: Final = 0
"""The number of no request. A connection waits for it until its gateway has refused the PROXY header."""


def client_of(number: int) -> int:
    """The number of the client that has sent a request."""
    return number // (CONNECTIONS * NUMBERS_PER_CONNECTION)


class ClientConnection(asyncio.Protocol):
    """One connection of a client. `due` are the numbers of the requests without a response, the oldest first."""

    transport: SimulatedTransport

    def __init__(self, client: "SimulatedClient", number: int, gateway: str) -> None:
        self.client = client
        self.number = number
        self.gateway = gateway
        self.due: deque[int] = deque()
        self.frames = Frames()
        self.session = (0, 0 if client.plan.in_session else -1)
        self.muted_until = 0.0
        self.named = not client.plan.user  # the gateway knows the user
        self.is_member = False  # the coordinator has accepted a heartbeat
        self.ended: str | None = None  # fin, reset or closed
        self.lost = asyncio.Event()

    @property
    def peer(self) -> str:
        """The client's address and port, as its gateway should know them."""
        host, port = self.transport.connection.address
        return f"{source_of(self.client.plan.number) if self.client.plan.header else host}:{port}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport
        self.client.cluster.peers.add(self.peer)

    def data_received(self, data: bytes) -> None:
        for frame in self.frames.add(data):
            self._take(frame)
        self.client.answered.set()

    def _take(self, frame: bytes) -> None:
        verdicts, sent = self.client.cluster.verdicts, self.client.cluster.sent
        number = int.from_bytes(frame[4:8], "big")
        if not self.due or self.due[0] != number:
            due = self.due[0] if self.due else "nothing"
            verdicts.fail("wrong response", f"client {self.client.plan.number} got {number}, and {due} was due")
            return
        self.due.popleft()
        request = sent[number]
        request.answered = True
        api = Api(request.head.api)
        if self.client.plan.topics:
            problem = self.client.cluster.batches.problem(number, frame)
            if problem:
                verdicts.fail("topic quota", problem)
            return
        answer = kafka.read_answer(api, frame)
        if answer.number not in (None, number):
            verdicts.fail("wrong response", f"the response to {number} has the content of {answer.number}")
        if api in (Api.PRODUCE, Api.METADATA) and answer.number is None and answer.error != kafka.PAUSED:
            verdicts.fail("wrong response", f"the response to {number} has no content, error {answer.error}")
        if api is Api.ALTER_QUOTAS and answer.error == 0:
            self.client.cluster.alterations[number].confirmed = self.client.loop.time()
        if api is Api.HEARTBEAT:
            self.is_member = True
        if answer.throttle > 0.0 and self.client.cluster.nobody_waits:
            verdicts.fail("shadow limit delays", f"the response to {number} has a throttle time of {answer.throttle:g} s")
        if answer.throttle > 0.0 and self.client.plan.polite:
            self.muted_until = self.client.loop.time() + answer.throttle
        if any(host != self.gateway for host, _ in answer.brokers):
            verdicts.fail("wrong address", f"the response to {number} names {answer.brokers}")
        if api is Api.FETCH and self.client.plan.in_session:
            # As Java does: an answer without a session begins none.
            self.session = (answer.session_id, self.session[1] + 1) if answer.session_id and not answer.error else (0, 0)

    def eof_received(self) -> None:
        self.ended = "fin"

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.ended = "reset"
        elif self.ended is None:
            self.ended = "closed"
        self.lost.set()
        self.client.answered.set()
        self.client.on_end(self)


class SimulatedClient:
    """Runs one client of the plan until it has sent all its requests. `on_end` is called for each ended connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: Client,
        cluster: Cluster,
        gateways: list[str],
        seed: int,
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        self.loop = loop
        self.plan = plan
        self.cluster = cluster
        self.on_end = on_end
        self.process = Process(f"client-{plan.number}", f"10.2.0.{plan.number + 1}")
        self.answered = asyncio.Event()
        self.connection: ClientConnection | None = None
        self.connections = 0
        self.done = False
        self.leaving = False
        self.stopped = False
        self._gateways = gateways
        self._line = Line(f"{seed}-client-{plan.number}")
        self._numbers = count(1)
        self._left = plan.requests

    @property
    def unanswered(self) -> int:
        connection = self.connection
        return 0 if connection is None or connection.ended is not None else len(connection.due)

    def start(self) -> None:
        self.process.run(lambda: self.loop.create_task(self._run()))

    async def _run(self) -> None:
        await asyncio.sleep(self.plan.begin)
        while self._left > 0 and not self.stopped:
            connection = await self._connect()
            if connection is None:
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            self.connection = connection
            if self.plan.user:
                await self._authenticate(connection)
            slow = self.loop.create_task(self._read_slowly(connection)) if self.plan.slow else None
            await self._send_all(connection)
            while connection.due and connection.ended is None:
                await self._next()
            if slow is not None:
                slow.cancel()
            if self.leaving:
                break
            if self.plan.hops and connection.ended is None:
                connection.ended = "closed"
                connection.transport.close()
                continue
            if connection.ended is not None:
                await asyncio.sleep(RECONNECT_SECONDS)
        self.done = True

    async def _connect(self) -> ClientConnection | None:
        """Connect to the next gateway in turn. A client that hops stays with its gateway."""
        hop = 0 if self.plan.hops else self.connections
        host = self._gateways[(self.plan.gateway + hop) % len(self._gateways)]
        port = FIRST_BROKER_PORT + self.plan.broker if self.plan.broker else PORT
        self.connections += 1
        number = self.plan.number * CONNECTIONS + self.connections
        try:
            _, protocol = await self.loop.create_connection(lambda: ClientConnection(self, number, host), host, port)
        except OSError:
            return None
        assert isinstance(protocol, ClientConnection)
        return protocol if await self._introduce(protocol) else None

    async def _introduce(self, connection: ClientConnection) -> bool:
        """Let the balancer send its header. After a wrong one, the gateway must end the connection and forward nothing."""
        kind, (_, port) = self.plan.header, connection.transport.connection.address
        connection.transport.write(header(kind, source_of(self.plan.number), port))
        if kind not in WRONG:
            return True
        if kind == "none":
            connection.transport.write(kafka.metadata(self._next_number(connection), self.plan.client_id))
        self.connection = connection
        connection.due.append(_NOTHING)
        await connection.lost.wait()
        self._left -= 1
        return False

    async def _authenticate(self, connection: ClientConnection) -> None:
        """Send both requests of SASL, one after the other, unless the connection ends before."""
        await self._exchange(connection, lambda number: kafka.handshake(number, self.plan.client_id))
        await self._exchange(connection, lambda number: kafka.authenticate(number, self.plan.client_id, self.plan.user))
        connection.named = connection.ended is None

    async def _exchange(self, connection: ClientConnection, make: Callable[[int], bytes]) -> None:
        if connection.ended is None:
            number = self._next_number(connection)
            self._write(connection, number, make(number), -1)
        while connection.due and connection.ended is None:
            await self._next()

    async def _send_all(self, connection: ClientConnection) -> None:
        depth = 1 if self.plan.in_session and self.plan.kind == "consumer" else self.plan.depth
        while self._left > 0 and connection.ended is None and not (self.leaving or self.stopped):
            wait = connection.muted_until - self.loop.time()
            if wait > 0.0 or self.plan.pause:
                await asyncio.sleep(max(wait, self.plan.pause))
            while self._left > 0 and connection.ended is None and len(connection.due) < depth:
                self._left -= 1
                self._send(connection)
                if self.plan.acks == 0 and self.plan.kind == "producer":
                    await asyncio.sleep(THINK_SECONDS)
            if self.plan.hops:
                return
            if connection.ended is None and len(connection.due) >= depth:
                await self._next()

    async def _next(self) -> None:
        self.answered.clear()
        await self.answered.wait()

    def _next_number(self, connection: ClientConnection) -> int:
        first = self.plan.number * CONNECTIONS + connection.number % CONNECTIONS
        return first * NUMBERS_PER_CONNECTION + next(self._numbers)

    def _send(self, connection: ClientConnection) -> None:
        plan = self.plan
        number = self._next_number(connection)
        acks = -1
        match plan.kind:
            case "producer":
                acks = plan.acks
                frame = kafka.produce(number, plan.client_id, plan.size, acks)
                if plan.topics:
                    frame = topic_messages.produce(number, plan.client_id, dict.fromkeys(plan.topics, plan.size))
                    self.cluster.batches.send(frame)
            case "consumer":
                frame = kafka.fetch(number, plan.client_id, max(plan.size, kafka.BATCH_BYTES), connection.session)
            case "admin":
                topics = [(f"t{number}", PARTITIONS)]
                if number % 3 == 0:
                    topics.append((f"bad{number}", PARTITIONS))
                frame = kafka.create_topics(number, plan.client_id, topics)
            case "operator":
                target, value = kafka.CLIENT_IDS[number % 3], kafka.ALTERED[number // 3 % len(kafka.ALTERED)]
                key = kafka.ALTERED_KEYS[number // 9 % len(kafka.ALTERED_KEYS)]
                self.cluster.alterations[number] = Alteration(target, key, value, self.loop.time())
                frame = kafka.alter(number, plan.client_id, target, key, value)
            case _:
                frame = (kafka.heartbeat if number % 2 else kafka.metadata)(number, plan.client_id)
        self._write(connection, number, frame, acks)

    def _write(self, connection: ClientConnection, number: int, frame: bytes, acks: int) -> None:
        self.cluster.sent[number] = Sent(frame, kafka.head_of(frame), acks, connection.number)
        if acks != 0:
            connection.due.append(number)
        connection.transport.write(frame)

    async def _read_slowly(self, connection: ClientConnection) -> None:
        while connection.ended is None and not self.stopped:
            connection.transport.pause_reading()
            await asyncio.sleep(self.plan.slow)
            connection.transport.resume_reading()
            await asyncio.sleep(self._line.delay())

    # Faults.

    def leave(self) -> None:
        """Close the connection, and do not come back."""
        self.leaving = True
        if self.connection is not None and self.connection.ended is None:
            self.connection.ended = "closed"
            self.connection.transport.close()
        self.answered.set()

    def abort_in_request(self) -> None:
        """Send the first half of a request, and reset the connection. A client without a user yet sends no Produce."""
        connection = self.connection
        if connection is None or connection.ended is not None or connection.transport.is_closing() or self.plan.header in WRONG:
            return
        connection.ended = "reset"
        self.answered.set()
        number = self._next_number(connection)
        name = self.plan.client_id
        frame = kafka.produce(number, name, self.plan.size, 1) if connection.named else kafka.handshake(number, name)
        self.cluster.sent[number] = Sent(frame, kafka.head_of(frame), 1, connection.number)
        self.process.run(connection.transport.write, frame[: len(frame) // 2])
        self.cluster.network.at(self.loop.time() + self._line.delay() * 3, connection.transport.connection.cut)
