"""Weir's own requests: messages of kafka-python, which aiokafka's connections send."""

from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any, Final, Generic, TypeVar

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestHeader_v1, RequestHeader_v2, ResponseHeader_v0, ResponseHeader_v1
from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataRequest

from protocol.api_keys import ApiKey, response_header_version
from protocol.bodies.topic_metadata import MetadataAnswer, read_answer
from protocol.cursor import Reader

_Answer = TypeVar("_Answer")

Versions = Mapping[int, tuple[int, int]]
"""The first and the last version that a broker offers of each API, by API key."""

_CONTROLLER: Final = "the port of a controller, which serves no Metadata: name the address of a broker"
"""The error for a server that does not offer Metadata. All brokers offer it."""

Message = Any
"""A message class of kafka-python, or an object of such a class. kafka-python has no types."""


class BrokerRequest(Generic[_Answer]):
    """A request in the newest version that the broker knows, from `oldest` to `newest`. `read` decodes a response.

    `on_versions` gets the versions that the broker offers.
    """

    def __init__(
        self,
        message: Message,
        fields: Mapping[str, object],
        read: Callable[[int, bytes], _Answer],
        *,
        oldest: int,
        newest: int,
        on_versions: Callable[[Versions], None] = lambda _: None,
    ) -> None:
        self._message = message
        self._fields = fields
        self._range = oldest, newest
        self._on_versions = on_versions
        self.read = read

    def prepare(self, versions: Versions) -> "_Prepared":
        """Called by aiokafka with the versions that the broker offers. Raises IncompatibleBrokerVersion."""
        self._on_versions(versions)
        oldest, newest = self._range
        if ApiKey.METADATA not in versions:
            raise IncompatibleBrokerVersion(_CONTROLLER)
        low, high = versions.get(self._message.API_KEY, (0, -1))
        version = min(newest, high)
        if version < max(oldest, low):
            raise IncompatibleBrokerVersion(
                f"{self._message.name} needs v{oldest} to v{newest}, and the broker knows v{low} to v{high}"
            )
        return _Prepared(self._message(version=version, **self._fields))


class _Prepared:
    """A request in one version, with the methods that aiokafka calls. `BrokerRequest.read` gets the undecoded body."""

    def __init__(self, message: Message) -> None:
        self.API_KEY, self.API_VERSION = message.API_KEY, message.API_VERSION
        self.encode = message.encode
        self._flexible = message.flexible_version_q(message.API_VERSION)

    @property
    def RESPONSE_TYPE(self) -> "_Prepared":  # noqa: N802 -- aiokafka's name
        return self  # an attribute would be a reference cycle: garbage until a collection that may come hours later

    def build_request_header(self, correlation_id: int, client_id: str) -> Message:
        header = RequestHeader_v2 if self._flexible else RequestHeader_v1
        return header(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, response: BytesIO) -> Message:
        return (ResponseHeader_v1 if self._flexible else ResponseHeader_v0).decode(response)

    def decode(self, response: BytesIO) -> tuple[int, bytes]:
        return self.API_VERSION, response.read()


def describe_topics(
    names: Collection[str] | None,
    check_cluster: Callable[[str | None], None] = lambda _: None,
    on_versions: Callable[[Versions], None] = lambda _: None,
) -> BrokerRequest[MetadataAnswer]:
    """Metadata of these topics; None for all topics. Creates no topic. `check_cluster` gets each answer's cluster id.

    Weir's own codec reads the response, because the list may have hundreds of thousands of partitions (docs/decisions/020).
    """
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(version=_WITH_IDS, name=name) for name in names]
    leaders_of = frozenset(names or ())

    def read(version: int, body: bytes) -> MetadataAnswer:
        compact = response_header_version(ApiKey.METADATA, version) >= 1
        answer = read_answer(version, Reader(body, 0, len(body), len(body), compact=compact), leaders_of)
        check_cluster(answer.cluster_id)
        return answer

    fields = {"topics": topics, "allow_auto_topic_creation": False}
    return BrokerRequest(MetadataRequest, fields, read, oldest=_CREATES_NOTHING, newest=_WITH_IDS, on_versions=on_versions)


def describe_log_dirs() -> BrokerRequest[Message]:
    """A broker's log directories without partitions, in the first version with the size of the volume (KIP-827)."""

    def read(version: int, body: bytes) -> Message:
        return DescribeLogDirsResponse.decode(body, version=version)

    return BrokerRequest(DescribeLogDirsRequest, {"topics": []}, read, oldest=4, newest=4)


_CREATES_NOTHING = 4
"""The first version of Metadata with `allow_auto_topic_creation`."""

_WITH_IDS = 12
"""Topic ids are in responses since v10 (Kafka 2.8)."""
