"""One client of the soak: connects, sends small requests for a while, and leaves in good or bad order."""

import asyncio
import random
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from loadtest.scenarios.soak import raw_requests as raw
from loadtest.scenarios.soak.journal import Fate, Journal, Sent
from protocol.errors import Incomplete, ProtocolError

CAPPED_TOPIC: Final = "capped"
PATIENCE_SECONDS: Final = 150.0
"""A request that is unanswered for so long is stuck. Throttles and frozen brokers cost some seconds only."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_CONNECT_SECONDS: Final = 60.0
_LONGEST_RESPONSE: Final = 1 << 20
_LOST: Final = (OSError, EOFError)


class WrongResponseError(RuntimeError):
    """A response that does not belong to the request."""


_WRONG: Final = (WrongResponseError, ProtocolError, Incomplete)


@dataclass(frozen=True, slots=True)
class Manner:
    """The behaviour of a kind of client.

    `topic` is a prefix of the topics of an epoch. `pause` is the mean time between requests, in seconds. The parts `produces`
    and `fetches` of the requests leave the rest to Metadata. A part `vanishes` of the visits ends amid a request.
    """

    name: str
    part: float
    client_ids: int
    topic: str
    pause: float
    produces: float = 0.0
    fetches: float = 0.0
    record_bytes: int = 200
    vanishes: float = 0.0


CALM: Final = "calm"
MANNERS: Final = (
    Manner(CALM, 0.30, 1, CALM, 6.0, produces=0.8, fetches=0.2),
    Manner("rough", 0.40, 20, "rough", 6.0, produces=0.5, fetches=0.4, record_bytes=400, vanishes=0.5),
    Manner("greedy", 0.05, 4, "rough", 0.1, produces=1.0, record_bytes=2000, vanishes=0.2),
    Manner("capped", 0.02, 1, CAPPED_TOPIC, 3.0, produces=1.0, record_bytes=1000),
    Manner("watcher", 0.13, 3, "rough", 5.0),
    Manner("idle", 0.10, 5, "rough", 1000.0),
)


def manner_of(place: int, count: int) -> Manner:
    """The manner of the client with this number, of `count` clients."""
    reached = 0.0
    for manner in MANNERS:
        reached += manner.part
        if place < round(reached * count):
            return manner
    return MANNERS[-1]


@dataclass(slots=True)
class Surroundings:
    """The state that all visitors of a process share. `addresses` maps TLS or not to the cluster as seen there."""

    journal: Journal
    tls: ssl.SSLContext
    clock: Callable[[], float]
    clusters: dict[bool, raw.Cluster]
    epoch: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    visits: int = 0
    connected: int = 0
    leaving: asyncio.Event = field(default_factory=asyncio.Event)


def send(writer: asyncio.StreamWriter, request: bytes) -> None:
    """Raises ConnectionResetError if the connection has ended. uvloop would raise RuntimeError then."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(request)


class Visitor:
    """One connection after the other, until the crowd leaves."""

    def __init__(self, place: int, count: int, seed: int, around: Surroundings, stay: tuple[float, float]) -> None:
        """`stay` is the shortest and the longest life of a connection, in seconds."""
        self._chance = random.Random(f"{seed}-{place}")
        self._manner = manner_of(place, count)
        self._encrypted = place % 4 == 0
        self._around = around
        self._stay = stay
        self._client_id = self._manner.name
        if self._manner.client_ids > 1:
            self._client_id += f"-{place % self._manner.client_ids}"
        self._correlation = 0
        self._visit = 0
        self._records = 0

    async def run(self, delay: float) -> None:
        around = self._around
        await self._rest(delay)
        while not around.leaving.is_set():
            cluster = around.clusters[self._encrypted]
            broker = self._chance.choice(sorted(cluster.brokers))
            around.visits += 1
            self._visit, self._records = around.visits, 0
            try:
                await self._stay_at(broker, cluster.brokers[broker])
            except TimeoutError:
                around.counts["stuck"] += 1
            except _WRONG as error:
                around.counts["wrong response"] += 1
                print(f"{self._name()}: wrong response: {error!r}", file=sys.stderr, flush=True)
            except _LOST as error:
                around.counts[f"lost: {type(error).__name__}"] += 1
                await self._rest(self._chance.uniform(1, 4))

    async def _rest(self, seconds: float) -> None:
        # asyncio.wait_for of Python 3.11 can lose a cancellation; then the crowd would go on after an error, with few clients.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._around.leaving.wait()

    async def _stay_at(self, broker: int, address: tuple[str, int]) -> None:
        around, chance = self._around, self._chance
        tls = around.tls if self._encrypted else None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*address, ssl=tls)
        except TimeoutError:
            around.counts["no connection in time"] += 1
            return
        around.connected += 1
        until = around.clock() + chance.uniform(*self._stay)
        vanishes = chance.random() < self._manner.vanishes
        try:
            await self._ask(reader, writer, raw.api_versions(self._name(), self._next()))
            while (left := until - around.clock()) > 0 and not around.leaving.is_set():
                await self._rest(min(chance.expovariate(1 / self._manner.pause), left))
                await self._one_request(reader, writer, broker)
            if vanishes:
                self._vanish(writer, broker)
        finally:
            around.connected -= 1
            writer.close()
            with suppress(*_LOST, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await writer.wait_closed()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: int) -> None:
        kind, manner = self._chance.random(), self._manner
        topic = self._topic()
        partitions = self._around.clusters[self._encrypted].led_by(topic, broker)
        if kind > manner.produces + manner.fetches or not partitions:
            await self._ask(reader, writer, raw.metadata(self._name(), self._next(), [topic]))
            self._around.counts["metadata"] += 1
        elif kind < manner.produces:
            await self._produce(reader, writer, topic, self._chance.choice(partitions))
        else:
            await self._fetch(reader, writer, topic, self._chance.choice(partitions))

    async def _produce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topic: str, partition: int) -> None:
        around = self._around
        number, batch, frame = self._batch(topic, partition)
        fate, error = Fate.UNANSWERED, raw.NONE
        try:
            error, offset = raw.read_produced(await self._ask(reader, writer, frame))
            if error == raw.NONE:
                fate = Fate.ACKNOWLEDGED
                around.offsets[topic, partition] = offset
            else:
                fate = Fate.REFUSED if error == raw.NOT_ENOUGH_REPLICAS else Fate.UNCLEAR
                around.counts[f"produce error {error}"] += 1
        finally:
            around.journal.note(Sent(number, topic, fate, len(batch), len(frame), around.clock()))
        if error == raw.NOT_LEADER:
            raise ConnectionAbortedError  # another broker leads the partition now

    async def _fetch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topic: str, partition: int) -> None:
        offset = self._chance.randint(0, self._around.offsets.get((topic, partition), 0))
        request = raw.fetch(self._name(), self._next(), topic, partition, offset)
        error = raw.read_fetched(await self._ask(reader, writer, request))
        self._around.counts[f"fetch error {error}" if error else "fetched"] += 1

    def _vanish(self, writer: asyncio.StreamWriter, broker: int) -> None:
        """Leave with a whole or with half a request, and reset the connection or close it."""
        topic = self._topic()
        partitions = self._around.clusters[self._encrypted].led_by(topic, broker)
        if partitions:
            number, batch, frame = self._batch(topic, self._chance.choice(partitions))
            whole = self._chance.random() < 0.5
            send(writer, frame if whole else frame[: self._chance.randrange(1, len(frame))])
            fate = Fate.UNANSWERED if whole else Fate.CUT
            self._around.journal.note(Sent(number, topic, fate, len(batch), len(frame), self._around.clock()))
        if self._chance.random() < 0.5:
            bare: socket.socket = writer.get_extra_info("socket")
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        self._around.counts["vanished"] += 1

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
        """The response without its length. Raises `TimeoutError` if it is stuck, and OSError or EOFError."""
        send(writer, request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            length = int.from_bytes(await reader.readexactly(4), "big")
            if length > _LONGEST_RESPONSE:
                raise WrongResponseError(f"a response of {length} bytes")
            response = await reader.readexactly(length)
        if int.from_bytes(response[:4], "big") != self._correlation:
            raise WrongResponseError(f"correlation id {response[:4].hex()} in place of {self._correlation}")
        return response

    def _batch(self, topic: str, partition: int) -> tuple[int, bytes, bytes]:
        number = self._visit << 20 | self._records
        self._records += 1
        batch = raw.batch_of(number, self._chance.randint(1, 2 * self._manner.record_bytes))
        return number, batch, raw.produce(self._name(), self._next(), topic, partition, batch)

    def _topic(self) -> str:
        name = self._manner.topic
        return name if name == CAPPED_TOPIC else f"{name}-{self._around.epoch:02}"

    def _name(self) -> str:
        """The client-id. The calm clients have one for each epoch, so that the gateway counts their epochs apart."""
        return f"{CALM}-{self._around.epoch:02}" if self._manner.name == CALM else self._client_id

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation
