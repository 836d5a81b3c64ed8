"""Produce while a volume of the cluster is over its hard limit: kept for a while, then answered with a retriable error."""

from collections import deque

from gateway.session.exchange import Connection, Exchange
from gateway.session.gate import ProduceGate
from gateway.session.inflight import Entry
from protocol.bodies.produce_refusal import Partitions, read_partitions, refuse
from protocol.cursor import LENGTH_BYTES
from protocol.headers import RequestHeader

NOT_ENOUGH_REPLICAS = 19
"""Of Kafka's errors the one that every client retries and none takes for the end of a connection or of a leader."""

MESSAGE = "Weir: a volume of the cluster is over its hard limit, or its usage is not known; try again later"


class PauseRoom:
    """Requests that wait for a pause to end, oldest first; makes the exchanges of Produce requests that the gate refuses."""

    def __init__(self, gate: ProduceGate, error_code: int = NOT_ENOUGH_REPLICAS) -> None:
        self.gate = gate
        gate.refusal = self.open
        self.error_code = error_code
        self._waiting: deque[tuple[float, Connection]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, connection: Connection) -> Exchange:
        """The exchange for a request that is refused."""
        return PausedProduce(self, connection)

    def wait(self, until: float, connection: Connection) -> None:
        """Have a connection look again at that monotonic time, or when the pause is over."""
        self._waiting.append((until, connection))

    def release(self, now: float) -> None:
        """To be called several times a second, and when the gate changes: whoever has waited long enough goes on."""
        while self._waiting and (self._waiting[0][0] <= now or not self.gate.paused):
            _, connection = self._waiting.popleft()
            connection.ready()


class PausedProduce:
    """One Produce request with acks that does not go to its broker."""

    def __init__(self, room: PauseRoom, connection: Connection) -> None:
        self._room = room
        self._connection = connection
        self._partitions: Partitions = []
        self._version = 0
        self._correlation_id = 0
        self._until = 0.0

    def opens(self, size: int, now: float) -> bool:  # noqa: ARG002
        """Always: Produce requests are as long as `connections.max_frame_bytes` lets them be."""
        return True

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:  # noqa: ARG002
        """It is decided already."""
        return True

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> None:  # noqa: ARG002
        """Note what is to be refused, and let go of the records."""
        self._partitions = read_partitions(frame, header.body_offset, header.api_version)
        self._version = header.api_version
        self._correlation_id = header.correlation_id
        delay = self._room.gate.refused()
        bucket = self._connection.client.bucket("produce", now)
        self._connection.throttle.note_held(delay, now, bucket, len(frame) - LENGTH_BYTES)
        self._until = now + delay
        self._room.wait(self._until, self._connection)

    def response(self, frame: bytes, now: float) -> bytes:
        """No broker was asked."""
        raise AssertionError(frame, now)

    def answer(self, now: float) -> bytes | None:
        """The refusal, once it is time."""
        if now < self._until and self._room.gate.paused:
            return None
        return refuse(self._version, self._correlation_id, self._partitions, self._room.error_code, MESSAGE)
