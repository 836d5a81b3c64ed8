"""The state that a client leaves behind at its broker: without any, the connection may serve another client.

Brokers tie some state to a connection: a login, share sessions (KIP-932), telemetry (KIP-714), and a mute for a quota of their
own. After an acks=0 request that fails, a broker closes the connection at any later time.
"""

from typing import Final

from gateway.proxy.in_flight import Entry
from protocol.api_keys import ApiKey
from protocol.errors import ProtocolError
from protocol.throttle import read_throttle, throttle_offset

MAX_ANSWER_BYTES: Final = 512
"""The connection of a longer last answer is not used again: each young connection keeps its last answer in memory."""

MAX_ANSWERS: Final = 64
"""A connection whose answers took so many reads is not used again: it has cost little for each of them."""

_UNTIED: Final = frozenset(
    {
        ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS,
        ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CLUSTER, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)  # fmt: skip
"""The APIs that tie no state to a connection, as of Kafka 4.3."""


class Reuse:
    """Judges one connection to a broker, from its requests and its last answer.

    Both notes return the judge that gets the next one: this one, or `TIED`.
    """

    __slots__ = ("_answer", "_answers_left", "_api_key", "_at", "_served", "_version")

    def __init__(self, answers: int = MAX_ANSWERS) -> None:
        self._answers_left = answers
        self._served = False
        self._answer = b""
        self._at = -1
        self._api_key = self._version = 0  # of the entry, which itself may refer to the whole session

    def note_request(self, api_key: int, *, answered: bool) -> "Reuse":
        """Note a request that is forwarded. The fast path's requests are like one that was noted."""
        if not self._answers_left or not answered or api_key not in _UNTIED:
            return TIED
        if api_key != ApiKey.API_VERSIONS:
            # A broker with SASL answers ApiVersions before the login, but fails a login behind two of them.
            self._served = True
        return self

    def note_answers(self, chunk: bytes, at: int, entry: Entry | None) -> "Reuse":
        """Note the broker's last bytes. The last answer is that of `entry`, from the offset `at` to the end of the bytes.

        `at` is negative if no whole answer ends there.
        """
        if self._answers_left <= 1:
            return TIED
        self._answers_left -= 1
        if at >= 0 and entry is not None and len(chunk) <= MAX_ANSWER_BYTES:
            self._answer, self._at, self._api_key, self._version = chunk, at, entry.api_key, entry.version
        elif self._at >= 0:
            self._answer, self._at = b"", -1
        return self

    @property
    def allowed(self) -> bool:
        """True if the connection is as good as a new one, once all its requests are answered.

        A broker takes no request from a muted connection. So only the last answer can announce a mute that holds.
        """
        if not self._served or self._at < 0:
            return False
        try:
            offset = throttle_offset(self._api_key, self._version, self._answer, self._at, len(self._answer))
        except ProtocolError:
            return False
        return offset >= 0 and read_throttle(self._answer, offset) == 0


TIED: Final = Reuse(answers=0)
"""Judges all connections that are not used again: their clients leave state behind, or have had many answers."""
