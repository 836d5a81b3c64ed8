"""Requests and responses of simulated clients and brokers, encoded by hand because they are made by the thousand.

Each request has a number that no other request of the run has. It is the correlation id, and it is in the body as well, so
that a response shows by itself which request it answers.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final


class Api(IntEnum):
    """The APIs of the simulation. `VERSION` has their versions; those are not flexible."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    HEARTBEAT = 12
    SASL_HANDSHAKE = 17
    CREATE_TOPICS = 19
    SASL_AUTHENTICATE = 36
    ALTER_QUOTAS = 49


VERSION: Final = {
    Api.PRODUCE: 7, Api.FETCH: 11, Api.METADATA: 1, Api.HEARTBEAT: 0, Api.CREATE_TOPICS: 4, Api.ALTER_QUOTAS: 0,
    Api.SASL_HANDSHAKE: 1, Api.SASL_AUTHENTICATE: 0,
}  # fmt: skip
CLIENT_IDS: Final = ("job-1", "job-2", "etl")
ALTERED: Final = (30_000, 100_000, None)
"""The limits that operators set through the quota API, in units per second. None removes the limit."""

ALTERED_KEYS: Final = ("producer_byte_rate", "controller_mutation_rate")
"""The quotas with these limits. They are too high to delay any mutation."""

OWN_METADATA: Final = 4
"""The version of Metadata in which a gateway asks for topics on a client's connection."""

BATCH_BYTES: Final = 2_000
TOPIC: Final = b"payments"
_MECHANISM: Final = b"PLAIN"
INVALID_TOPIC: Final = 17
PAUSED: Final = 19
"""The error code (NOT_ENOUGH_REPLICAS) of a Produce that a gateway refuses because a volume is full."""

_HEAD = Struct(">ihhi")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_DOUBLE = Struct(">d")
_FETCH_BODY = Struct(">iiiibii")
_FETCH_PARTITION = Struct(">iiqqi")
_FETCHED = Struct(">ihqqqiii")  # one partition up to its records; no aborted transactions
_PRODUCED = Struct(">ihqqq")


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a request; the body begins at `body`."""

    api: int
    version: int
    number: int
    client_id: str
    body: int


def text(name: bytes) -> bytes:
    return _INT16.pack(len(name)) + name


def framed(api: Api, version: int, number: int, client_id: str, body: bytes) -> bytes:
    client = client_id.encode()
    return b"".join((_HEAD.pack(10 + len(client) + len(body), api, version, number), text(client), body))


def answer(number: int, body: bytes) -> bytes:
    return _INT32.pack(4 + len(body)) + _INT32.pack(number) + body


def head_of(frame: bytes) -> Head:
    _, api, version, number = _HEAD.unpack_from(frame)
    (length,) = _INT16.unpack_from(frame, 12)
    return Head(api, version, number, frame[14 : 14 + length].decode(), 14 + length)


def produce(number: int, client_id: str, size: int, acks: int) -> bytes:
    """A Produce with `size` bytes of records."""
    records = _INT64.pack(number) + bytes(max(0, size - 8))
    body = b"".join((
        b"\xff\xff", _INT16.pack(acks), _INT32.pack(30_000), _INT32.pack(1), text(TOPIC), _INT32.pack(1), bytes(4),
        _INT32.pack(len(records)), records,
    ))  # fmt: skip
    return framed(Api.PRODUCE, VERSION[Api.PRODUCE], number, client_id, body)


def acks_of(frame: bytes, head: Head) -> int:
    return int(_INT16.unpack_from(frame, head.body + 2)[0])


def produced(number: int) -> bytes:
    body = _INT32.pack(1) + text(TOPIC) + _INT32.pack(1) + _PRODUCED.pack(0, 0, number, -1, 0) + bytes(4)
    return answer(number, body)


def fetch(number: int, client_id: str, max_bytes: int, session: tuple[int, int]) -> bytes:
    """A Fetch of one partition. `session` is its id and epoch; epoch -1 is without a session."""
    body = b"".join((
        _FETCH_BODY.pack(-1, 100, 1, max_bytes, 0, *session), _INT32.pack(1), text(TOPIC), _INT32.pack(1),
        _FETCH_PARTITION.pack(0, -1, number, -1, max_bytes), bytes(4), text(b""),
    ))  # fmt: skip
    return framed(Api.FETCH, VERSION[Api.FETCH], number, client_id, body)


def fetch_limits(frame: bytes, head: Head) -> tuple[int, int, int, int]:
    """max_wait_ms, max_bytes, session id and epoch."""
    _, max_wait, _, max_bytes, _, session_id, epoch = _FETCH_BODY.unpack_from(frame, head.body)
    return max_wait, max_bytes, session_id, epoch


def kept_of_fetch(frame: bytes, head: Head) -> bytes:
    """A Fetch without the fields that a gateway may change: three limits, and the id of a session that has ended."""
    *_, epoch = fetch_limits(frame, head)
    body = head.body
    return frame[: body + 4] + frame[body + 16 : body + (17 if epoch <= 0 else 21)] + frame[body + 21 :]


def fetched(number: int, batches: int, session_id: int) -> bytes:
    batch = _INT64.pack(number) + _INT32.pack(BATCH_BYTES - 12) + bytes(BATCH_BYTES - 12)
    records = batch * batches
    partition = _FETCHED.pack(0, 0, number, number, 0, 0, -1, len(records))
    topics = _INT32.pack(1) + text(TOPIC) + _INT32.pack(1) + partition + records
    return answer(number, bytes(4) + bytes(2) + _INT32.pack(session_id) + topics)


def heartbeat(number: int, client_id: str) -> bytes:
    return framed(Api.HEARTBEAT, 0, number, client_id, text(b"group") + bytes(4) + text(b"member"))


def beat(number: int) -> bytes:
    return answer(number, bytes(2))


def handshake(number: int, client_id: str) -> bytes:
    return framed(Api.SASL_HANDSHAKE, 1, number, client_id, text(_MECHANISM))


def handshaken(number: int) -> bytes:
    return answer(number, bytes(2) + _INT32.pack(1) + text(_MECHANISM))


def authenticate(number: int, client_id: str, user: str) -> bytes:
    """A token of SASL/PLAIN (RFC 4616)."""
    token = b"\0" + user.encode() + b"\0secret"
    return framed(Api.SASL_AUTHENTICATE, 0, number, client_id, _INT32.pack(len(token)) + token)


def authenticated(number: int) -> bytes:
    return answer(number, bytes(2) + b"\xff\xff" + bytes(4))


def metadata(number: int, client_id: str) -> bytes:
    """Metadata of one topic, which the request's number names."""
    return framed(Api.METADATA, 1, number, client_id, _INT32.pack(1) + text(b"m%d" % number))


def described(number: int, version: int, names: list[bytes], brokers: dict[int, tuple[str, int]]) -> bytes:
    """The response to Metadata: the topics named `known...` have one partition, all others are unknown."""
    rows = [_INT32.pack(node) + text(host.encode()) + _INT32.pack(port) + b"\xff\xff" for node, (host, port) in brokers.items()]
    cluster = b"" if version == VERSION[Api.METADATA] else b"\xff\xff"
    throttle = b"" if version == VERSION[Api.METADATA] else bytes(4)
    topics = [_INT16.pack(3) + text(name) + b"\0" + bytes(4) for name in names]
    return answer(number, b"".join((throttle, _INT32.pack(len(rows)), *rows, cluster, _INT32.pack(1),
                                     _INT32.pack(len(topics)), *topics)))  # fmt: skip


def names_in(frame: bytes, at: int) -> list[bytes]:
    """An array of strings at an offset."""
    (length,) = _INT32.unpack_from(frame, at)
    names, at = [], at + 4
    for _ in range(length):
        (size,) = _INT16.unpack_from(frame, at)
        names.append(frame[at + 2 : at + 2 + size])
        at += 2 + size
    return names


def create_topics(number: int, client_id: str, topics: list[tuple[str, int]]) -> bytes:
    """`topics` has names and numbers of partitions. Brokers refuse names that begin with `bad`."""
    rows = [text(name.encode()) + _INT32.pack(partitions) + _INT16.pack(1) + bytes(8) for name, partitions in topics]
    body = b"".join((_INT32.pack(len(rows)), *rows, _INT32.pack(30_000), b"\0"))
    return framed(Api.CREATE_TOPICS, VERSION[Api.CREATE_TOPICS], number, client_id, body)


def topics_in(frame: bytes, head: Head) -> list[tuple[bytes, int]]:
    """Names and partitions of a CreateTopics."""
    (length,) = _INT32.unpack_from(frame, head.body)
    topics, at = [], head.body + 4
    for _ in range(length):
        (size,) = _INT16.unpack_from(frame, at)
        name = frame[at + 2 : at + 2 + size]
        at += 2 + size
        topics.append((name, int(_INT32.unpack_from(frame, at)[0])))
        at += 14
    return topics


def created(number: int, topics: list[tuple[bytes, int]]) -> bytes:
    rows = [text(name) + _INT16.pack(INVALID_TOPIC if name.startswith(b"bad") else 0) + b"\xff\xff" for name, _ in topics]
    return answer(number, b"".join((bytes(4), _INT32.pack(len(rows)), *rows)))


def alter(number: int, client_id: str, target: str, key: str, value: int | None) -> bytes:
    """An AlterClientQuotas of one quota of the client-id `target`."""
    entity = _INT32.pack(1) + text(b"client-id") + text(target.encode())
    operation = _INT32.pack(1) + text(key.encode()) + _DOUBLE.pack(value or 0.0) + (b"\1" if value is None else b"\0")
    return framed(Api.ALTER_QUOTAS, 0, number, client_id, _INT32.pack(1) + entity + operation + b"\0")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as its client reads it. `number` is from the body, None if the body has none. `throttle` is in seconds."""

    throttle: float = 0.0
    number: int | None = None
    error: int = 0
    session_id: int = 0
    brokers: tuple[tuple[str, int], ...] = ()


def read_answer(api: Api, frame: bytes) -> Answer:
    """Read a whole response; `api` is its request's."""
    if api is Api.PRODUCE:
        (throttle,) = _INT32.unpack_from(frame, len(frame) - 4)
        _, error, number, *_ = _PRODUCED.unpack_from(frame, 8 + 4 + 2 + len(TOPIC) + 4)
        return Answer(throttle / 1000.0, None if error else number, error)
    if api is Api.FETCH:
        throttle, error, session_id, topics = Struct(">ihii").unpack_from(frame, 8)
        number = None
        if topics:
            _, _, number, *_ = _FETCHED.unpack_from(frame, 8 + 14 + 2 + len(TOPIC) + 4)
        return Answer(throttle / 1000.0, number, error, session_id)
    if api is Api.METADATA:
        return _read_described(frame)
    if api is Api.ALTER_QUOTAS:
        throttle, _, error = Struct(">iih").unpack_from(frame, 8)
        return Answer(throttle / 1000.0, error=error)
    if api is Api.CREATE_TOPICS:
        return Answer(_INT32.unpack_from(frame, 8)[0] / 1000.0)
    return Answer()


def _read_described(frame: bytes) -> Answer:
    (length,) = _INT32.unpack_from(frame, 8)
    at, brokers = 12, []
    for _ in range(length):
        (size,) = _INT16.unpack_from(frame, at + 4)
        host = frame[at + 6 : at + 6 + size].decode()
        at += 6 + size
        brokers.append((host, int(_INT32.unpack_from(frame, at)[0])))
        at += 6
    at += 4 + 4 + 2
    (size,) = _INT16.unpack_from(frame, at)
    return Answer(number=int(frame[at + 3 : at + 2 + size]), brokers=tuple(brokers))


class Frames:
    """Cuts a stream into whole frames."""

    def __init__(self) -> None:
        self._buffer = b""

    def add(self, data: bytes) -> list[bytes]:
        buffer = self._buffer + data if self._buffer else data
        frames, at = [], 0
        while len(buffer) - at >= 4:
            end = at + 4 + int(_INT32.unpack_from(buffer, at)[0])
            if end > len(buffer):
                break
            frames.append(buffer[at:end])
            at = end
        self._buffer = buffer[at:]
        return frames

    @property
    def rest(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)
