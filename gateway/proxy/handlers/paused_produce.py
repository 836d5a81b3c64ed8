"""Produce while a volume of the cluster is over its hard limit: answered at once with a retriable error and a throttle time."""

from gateway.proxy.handler import Connection
from gateway.proxy.in_flight import Entry
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.meter import throttle_time_ms
from protocol.bodies.produce_refusal import Partitions, read_partitions, refuse
from protocol.cursor import LENGTH_BYTES
from protocol.headers import RequestHeader

NOT_ENOUGH_REPLICAS = 19
"""Of Kafka's errors the one that every client retries and none takes for the end of a connection or of a leader."""

MESSAGE = "Weir: a volume of the cluster is over its hard limit, or its usage is not known; try again later"


class PausedProduce:
    """One Produce request with acks that does not go to its broker. `RequestStream` mutes its client."""

    def __init__(self, gate: ProduceGate, connection: Connection) -> None:
        self._gate = gate
        self._connection = connection
        self._partitions: Partitions = []
        self._version = 0
        self._correlation_id = 0
        self._throttle_time_ms = 0

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
        delay = self._gate.refused()
        self._throttle_time_ms = throttle_time_ms(delay)
        bucket = self._connection.client.bucket("produce", now)
        self._connection.throttle.note_held(delay, now, bucket, len(frame) - LENGTH_BYTES)

    def response(self, frame: bytes, now: float) -> bytes:
        """No broker was asked."""
        raise AssertionError(frame, now)

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        """The refusal."""
        return refuse(
            self._version, self._correlation_id, self._partitions, NOT_ENOUGH_REPLICAS, MESSAGE, self._throttle_time_ms
        )
