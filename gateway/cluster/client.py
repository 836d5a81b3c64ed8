"""Weir's own connections to the brokers: opened on demand, closed after an error."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    MessageSizeTooLargeError,
    NoError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from gateway.cluster.any_address import create_conn
from gateway.cluster.brokers import Address
from gateway.cluster.requests import BrokerRequest

REQUEST_TIMEOUT_MS = 10_000

IDLE_MS = 540_000
"""Connections without requests for this time are closed, as by Kafka's clients (`connections.max.idle.ms`). Otherwise that to a
broker that has vanished would keep its descriptor. Brokers close idle connections after 600 s."""

CLOSE_SECONDS = 1.0
"""A broker has this time to answer the end of TLS."""

Security = Callable[[], Mapping[str, Any]]
"""Returns aiokafka's connection options for TLS and SASL. Called for each connection, because certificates may be replaced."""

AnyRequest = Any
"""A `BrokerRequest`, or one of aiokafka's requests."""

KafkaResponse = Any
"""The result of `BrokerRequest.read`, or aiokafka's response object."""


class ClusterError(Exception):
    """The cluster or a broker can't be reached, or refuses a request.

    Errors with the same `cause` differ only in brokers, numbers or the network's words.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or type(self).__name__


class MissingTopicError(ClusterError):
    """The cluster answered that a topic or a partition does not exist."""


class OtherClusterError(ClusterError):
    """The answer is that of a broker of another cluster. The message has the remedy."""


class NotAuthorizedError(ClusterError):
    """Weir's own user lacks an ACL."""


class TooLargeError(ClusterError):
    """The broker refuses a batch for its size, by `max.message.bytes` of the topic."""


class CredentialsError(ClusterError):
    """A password or token can't be read. The message names key, file and remedy, and never the content of the file."""


class BadRecordError(ValueError):
    """A record that a feature can't use. `reason` is a label value for a metric; the text has the details."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@contextmanager
def answer_of(api: str) -> Iterator[None]:
    """Turn any exception while a response of this API is read into a ClusterError, because a broker may answer anything.

    For example, the iteration over a null array raises a TypeError.
    """
    try:
        yield
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"the answer to {api} is unreadable: {error!r}", f"unreadable {api}") from error


def plaintext() -> Mapping[str, Any]:
    """The options of a connection without TLS and SASL."""
    return {}


class Connections:
    """At most one connection to each address."""

    def __init__(self, security: Security = plaintext, client_id: str = "weir", timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self._security = security
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._open: dict[Address, AIOKafkaConnection] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._connecting: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()  # those that a request holds

    async def close(self) -> None:
        """Close all connections, and wait for the end of those that have failed. A later request opens a new one."""
        connections, self._open = self._open, {}
        for connection in connections.values():
            connection.close()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    async def ask(self, address: Address, request: AnyRequest) -> KafkaResponse:
        """Raises ClusterError, which names the address."""
        connection = None
        try:
            connection = await self._connection(address)
            answer = await connection.send(request)
            return request.read(*answer) if isinstance(request, BrokerRequest) else answer
        except OtherClusterError as error:
            self._forget(address, connection)
            raise OtherClusterError(f"{address[0]}:{address[1]}: {error}") from None
        except ClusterError:
            raise
        except Exception as error:  # aiokafka raises any exception for an odd answer, such as a TypeError
            self._forget(address, connection)
            host, port = address
            # A RuntimeError is a KafkaError, or uvloop's for a transport that has closed before the request was written.
            lost = isinstance(error, RuntimeError | OSError | EOFError | ValueError | AssertionError)
            problem = str(error) or type(error).__name__
            text = problem if lost else f"an answer is unreadable: {error!r}"
            # A refusal is a cause of its own. For a lost connection, the network has many words.
            refused = isinstance(error, BrokerResponseError | IncompatibleBrokerVersion)
            cause = type(error).__name__ if refused or not lost else ""
            raise ClusterError(f"{host}:{port}: {text}", cause) from error

    async def ask_any(self, addresses: Iterable[Address], request: AnyRequest) -> KafkaResponse:
        """Try the addresses in turn. Raises ClusterError, which names the problem of each: OtherClusterError if one is that."""
        return await _in_turn(self.ask, addresses, request)

    async def read_any(self, addresses: Iterable[Address], request: AnyRequest) -> KafkaResponse:
        """As `ask_any`, for a request that changes nothing. If it fails on an older connection, it goes over a new one."""
        return await _in_turn(self._ask_anew, addresses, request)

    async def _ask_anew(self, address: Address, request: AnyRequest) -> KafkaResponse:
        # A broker ends sessions from time to time, and closes the connection at the next request (KIP-368).
        older = self._open.get(address)
        is_open = older is not None and older.connected()
        try:
            return await self.ask(address, request)
        except ClusterError:
            if not is_open or self._open.get(address) is older:  # a new connection has failed, or the answer was an error
                raise
        return await self.ask(address, request)

    async def _connection(self, address: Address) -> AIOKafkaConnection:
        lock = self._connecting.setdefault(address, asyncio.Lock())
        async with lock:
            connection = self._open.get(address)
            if connection is None or not connection.connected():
                host, port = address
                connection = await create_conn(
                    host,
                    port,
                    client_id=self._client_id,
                    request_timeout_ms=self._timeout_ms,
                    max_idle_ms=IDLE_MS,
                    on_close=self._on_close,
                    **self._security(),
                )
                self._open[address] = connection
            return connection

    def _on_close(self, connection: AIOKafkaConnection, _: object) -> None:
        """aiokafka begins to close a connection, perhaps one that has just failed to log in. The end of TLS takes longer."""
        address = connection.host, connection.port
        if self._open.get(address) is connection:
            del self._open[address]
        closing: asyncio.Future[None] = connection.close()
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _forget(self, address: Address, broken: AIOKafkaConnection | None) -> None:
        """Close a failed connection, but not a newer one that another request has opened meanwhile."""
        if broken is not None:
            broken.close()
            if self._open.get(address) is broken:
                del self._open[address]


async def _in_turn(
    ask: Callable[[Address, AnyRequest], Awaitable[KafkaResponse]], addresses: Iterable[Address], request: AnyRequest
) -> KafkaResponse:
    problems: set[str] = set()
    causes: set[str] = set()
    kind = ClusterError
    for address in dict.fromkeys(addresses):
        try:
            return await ask(address, request)
        except CredentialsError:
            raise
        except ClusterError as error:
            problems.add(str(error))
            causes.add(error.cause)
            if isinstance(error, OtherClusterError):
                kind = OtherClusterError
    # Callers shuffle the addresses. The text must not change with each attempt, because `Discovery` logs a new text.
    raise kind("; ".join(sorted(problems)) or "there is no broker to ask", causes.pop() if len(causes) == 1 else "")


_ERRORS: Final[Mapping[type[BrokerResponseError], type[ClusterError]]] = {
    UnknownTopicOrPartitionError: MissingTopicError,
    TopicAuthorizationFailedError: NotAuthorizedError,
    ClusterAuthorizationFailedError: NotAuthorizedError,
    MessageSizeTooLargeError: TooLargeError,
    RecordListTooLargeError: TooLargeError,
}


def check_error(code: int, subject: str) -> None:
    """Raise ClusterError for an error code of Kafka's other than 0."""
    kind = for_code(code)
    if kind is not NoError:
        raise _ERRORS.get(kind, ClusterError)(f"{subject}: {kind.__name__} ({code})", kind.__name__)
