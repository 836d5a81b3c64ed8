"""Weir's own connections to the brokers: made when one is needed, dropped when one fails, never in the clients' way."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.api import Request

from gateway.cluster.brokers import Address
from gateway.cluster.requests import DescribeTopic

REQUEST_TIMEOUT_MS = 10_000

Security = Callable[[], Mapping[str, Any]]
"""Gives aiokafka's connection options for TLS and SASL, anew for each connection: certificates may have been replaced."""

Answer = Any
"""What aiokafka makes of a response: an object with the attributes that its schema names. It has no types of its own."""

_UNKNOWN_TOPIC = 3


class ClusterError(Exception):
    """The cluster, or one of its brokers, can't be reached or does not do what it is asked."""


@contextmanager
def answer_of(asked: str) -> Iterator[None]:
    """Raise ClusterError for anything that is raised while the answer of `asked` is read: brokers may answer anything.

    For example, an array that the schema allows to be null raises a TypeError where it is iterated.
    """
    try:
        yield
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"{asked} answered with something unreadable: {error!r}") from error


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A topic as it is now. `leaders` has each partition's node id, -1 for none, by the partition's index."""

    topic_id: bytes
    leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The brokers that are alive, by node id, and the topic that was asked for, None where there is none."""

    brokers: Mapping[int, Address]
    topic: TopicLook | None


def plaintext() -> Mapping[str, Any]:
    """No TLS and no SASL."""
    return {}


class OwnClient:
    """Connections to brokers by address. `bootstrap` tells where to begin, `client_id` what the brokers are told.

    `on_topic` is called with the name and the id of each topic that `look` finds.
    """

    def __init__(
        self,
        bootstrap: Callable[[], list[Address]],
        security: Security = plaintext,
        client_id: str = "weir",
        on_topic: Callable[[str, bytes], None] = lambda _name, _id: None,
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._client_id = client_id
        self._on_topic = on_topic
        self._connections: dict[Address, AIOKafkaConnection] = {}
        self._brokers: Mapping[int, Address] = {}

    async def close(self) -> None:
        """Close all connections; they are made anew where the client is used again."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            closing = connection.close()
            if closing is not None:
                await closing

    async def look(self, topic: str | None = None) -> ClusterLook:
        """Which brokers are alive, and what one topic is like. Raises ClusterError where no broker answers."""
        response = await self._ask_anyone(DescribeTopic(topic))
        with answer_of("a broker's Metadata"):
            self._brokers = {node_id: (host, port) for node_id, host, port, *_ in response.brokers if host}
            for code, name, topic_id, _, partitions, *_ in response.topics:
                if code == _UNKNOWN_TOPIC:
                    break
                check_error(code, f"topic {topic}")
                self._on_topic(name, topic_id)
                leaders = {partition: leader for _, partition, leader, *_ in partitions}
                return ClusterLook(self._brokers, TopicLook(topic_id, tuple(leaders[index] for index in sorted(leaders))))
        return ClusterLook(self._brokers, None)

    async def ask(self, node_id: int, request: Request[Any]) -> Answer:
        """A broker's answer to a request of aiokafka's. Raises ClusterError."""
        address = self._brokers.get(node_id)
        if address is None:
            raise ClusterError(f"broker {node_id} is not known to be alive")
        return await self._ask(address, request)

    async def ask_any(self, request: Request[Any]) -> Answer:
        """Any broker's answer. Raises ClusterError."""
        return await self._ask_anyone(request)

    async def _ask_anyone(self, request: Request[Any]) -> Answer:
        known = list(self._brokers.values())
        random.shuffle(known)
        problems: dict[str, None] = {}
        for address in dict.fromkeys([*known, *self._bootstrap()]):
            try:
                return await self._ask(address, request)
            except ClusterError as error:
                problems[str(error)] = None
        raise ClusterError("; ".join(problems) or "there is no broker to ask")

    async def _ask(self, address: Address, request: Request[Any]) -> Answer:
        try:
            connection = await self._connection(address)
            return await connection.send(request)
        except ClusterError:
            raise
        except Exception as error:  # aiokafka raises whatever an odd answer leads it to, such as a TypeError
            broken = self._connections.pop(address, None)
            if broken is not None:
                broken.close()
            host, port = address
            # A RuntimeError is a KafkaError, or uvloop's for a transport that has closed before the request was written.
            lost = isinstance(error, RuntimeError | OSError | EOFError | ValueError | AssertionError)
            problem = str(error) or type(error).__name__
            raise ClusterError(f"{host}:{port}: {problem if lost else f'an answer is unreadable: {error!r}'}") from error

    async def _connection(self, address: Address) -> AIOKafkaConnection:
        connection = self._connections.get(address)
        if connection is None or not connection.connected():
            host, port = address
            connection = await create_conn(
                host, port, client_id=self._client_id, request_timeout_ms=REQUEST_TIMEOUT_MS, **self._security()
            )
            self._connections[address] = connection
        return connection


def check_error(code: int, what: str) -> None:
    """Raise ClusterError for an error code of Kafka's."""
    kind = for_code(code)
    if kind is not NoError:
        raise ClusterError(f"{what}: {kind.__name__} ({code})")
