"""A broker whose answers a test defines, behind a real gateway and real sockets."""

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy.messages import topic_id
from tests.protocol import codec

HOST = "127.0.0.1"
NODE_ID = 1
TOPIC = "payments"
_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_START_SECONDS = 10.0


@dataclass(frozen=True)
class Request:
    """A request as the broker received it. `frame` includes the four bytes of length; `connection` counts from 0."""

    connection: int
    api_key: int
    version: int
    correlation_id: int
    frame: bytes

    def decode(self) -> Any:
        """The request as kafka-python's message."""
        return codec.request_class(self.api_key).decode(self.frame, version=self.version, header=True, framed=True)

    def answer(self, **values: Any) -> bytes:
        """The response frame with these values; fields that are left out have their defaults."""
        return codec.encode_response(self.api_key, self.version, values, self.correlation_id)


Answer = Callable[[Request], bytes | bool | Awaitable[bytes | None] | None]
"""Makes the response frame of a request, perhaps later; None leaves the request unanswered, False closes its connection."""


class StubBroker:
    """A context manager: a broker on a free port of the loopback interface, with an event loop in a thread of its own.

    `answers` maps an API key to the function that answers it; tests replace entries. The defaults answer ApiVersions,
    Metadata (this broker alone, `topics` by name and number of partitions), Produce and Fetch. The broker closes a
    connection that sends another API. `oldest` has the first versions of APIs where that is not 0. `received` has all
    requests in the order of arrival, without Weir's own requests (client-id "weir").
    """

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = topics or {TOPIC: 1}
        self.answers: dict[int, Answer] = {
            ApiKey.API_VERSIONS: self.api_versions,
            ApiKey.METADATA: self.metadata,
            ApiKey.PRODUCE: produced,
            ApiKey.FETCH: fetched_nothing,
        }
        self.oldest: dict[int, int] = {}
        self.received: list[Request] = []
        self.connections = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="stub broker")
        self._started = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()

    @property
    def bootstrap_servers(self) -> str:
        """The address as a client's configuration has it."""
        return f"{HOST}:{self.port}"

    def count(self, api_key: int) -> int:
        """The number of requests of one API that have arrived whole."""
        return sum(request.api_key == api_key for request in self.received)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Return once `condition` holds; it is evaluated after each request that arrives. Fails after `seconds`."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"not within {seconds:g} s: {what}"

    def send(self, data: bytes) -> None:
        """Send unrequested bytes to every open connection."""

        def write() -> None:
            for writer in self._writers:
                writer.write(data)

        self._loop.call_soon_threadsafe(write)

    def cut(self) -> None:
        """Abort every open connection."""

        def abort() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def api_versions(self, request: Request) -> bytes:
        """Every API that the stub answers and that the codec knows, from `oldest` to the last version that Weir knows."""
        version = min(request.version, APIS[ApiKey.API_VERSIONS].max_version)
        keys = [
            {"api_key": key, "min_version": self.oldest.get(key, 0), "max_version": APIS[ApiKey(key)].max_version}
            for key in self.answers
            if key in codec.KEYS
        ]
        return codec.encode_response(ApiKey.API_VERSIONS, version, {"error_code": 0, "api_keys": keys}, request.correlation_id)

    def metadata(self, request: Request) -> bytes:
        """This broker, and all topics."""
        version = request.version
        topics = []
        for name, partitions in self.topics.items():
            placed = {"error_code": 0, "leader_id": NODE_ID, "replica_nodes": [NODE_ID], "isr_nodes": [NODE_ID]}
            rows = [placed | {"partition_index": index} for index in range(partitions)]
            topics.append({"error_code": 0, "name": name, "partitions": rows})
            if version >= 10:
                topics[-1]["topic_id"] = UUID(bytes=topic_id(name))
        values: dict[str, Any] = {"brokers": [{"node_id": NODE_ID, "host": HOST, "port": self.port}], "topics": topics}
        if version >= 1:
            values["controller_id"] = NODE_ID
        return request.answer(**values)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        try:
            while True:
                head = await reader.readexactly(_LENGTH.size)
                frame = head + await reader.readexactly(_LENGTH.unpack(head)[0])
                answer = self._answer(number, frame)
                if answer is False:
                    return
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer:
                    writer.write(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, connection: int, frame: bytes) -> bytes | bool | Awaitable[bytes | None] | None:
        api_key, version, correlation_id = _HEAD.unpack_from(frame, 4)
        request = Request(connection, api_key, version, correlation_id, frame)
        if frame[12:18] != b"\x00\x04weir":
            with self._changed:
                self.received.append(request)
                self._changed.notify_all()
        answer = self.answers.get(api_key)
        return False if answer is None else answer(request)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def listen() -> None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port, limit=1 << 20)
            self.port = self._server.sockets[0].getsockname()[1]
            self._started.set()

        self._loop.run_until_complete(listen())
        self._loop.run_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(_START_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        async def end() -> None:
            # The server's own tasks make transports of accepted sockets. A closed server would leave such a socket open.
            while accepting := asyncio.all_tasks() - {asyncio.current_task()} - self._serving:
                await asyncio.wait(accepting)
            self._server.close()
            serving = [*self._serving]
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            for writer in self._writers:  # of tasks that had not begun
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        self._loop.close()


def produced(request: Request) -> bytes | None:
    """Accept the Produce without reading its records; acks=0 gets no answer. Its topics are answered as `TOPIC`."""
    if _acks(request) == 0:
        return None
    topic = {} if request.version >= 13 else {"name": TOPIC}
    return request.answer(responses=[topic | {"partition_responses": [{"index": 0, "error_code": 0, "base_offset": 7}]}])


def produce_outcome(frame: bytes, version: int = 9) -> tuple[int, int]:
    """Return the error code of the first partition of a Produce response, and its throttle time in ms."""
    response = codec.decode_response(ApiKey.PRODUCE, version, frame)
    return response["responses"][0]["partition_responses"][0]["error_code"], response["throttle_time_ms"]


def fetched_nothing(request: Request) -> bytes:
    """Answer a Fetch with no records."""
    return request.answer(responses=[])


def fetched(size: int) -> Answer:
    """Answer every Fetch with `size` bytes of records."""

    def answer(request: Request) -> bytes:
        topic = {} if request.version >= 13 else {"topic": TOPIC}
        partition = {"partition_index": 0, "error_code": 0, "high_watermark": 9, "records": bytes(size)}
        return request.answer(responses=[topic | {"partitions": [partition]}])

    return answer


def _acks(request: Request) -> int:
    """The acks of a Produce request follow the client-id and, since v3, the transactional id."""
    (length,) = struct.unpack_from(">h", request.frame, 12)
    at = 14 + max(length, 0)
    if request.version >= 9:
        at += 1  # no tagged fields in the header
        at += max(request.frame[at] - 1, 0) + 1
    elif request.version >= 3:
        (length,) = struct.unpack_from(">h", request.frame, at)
        at += 2 + max(length, 0)
    return int(struct.unpack_from(">h", request.frame, at)[0])
