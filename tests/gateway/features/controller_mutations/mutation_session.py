"""Frames of mutation requests, by an independent codec, and a broker that answers them, for transcripts."""

import uuid
from typing import Any

from gateway.quotas.kinds.controller_mutation import KIND
from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec

CREATE, DELETE, GROW = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS
LATEST = {CREATE: 7, DELETE: 6, GROW: 3}
PERMISSIVE = {CREATE: 5, DELETE: 4, GROW: 2}


def id_of(name: str) -> uuid.UUID:
    """Return the id of a topic in these scripts."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def create(correlation_id: int, topics: dict[str, int] | list[dict[str, Any]], *, version: int = 7, **values: Any) -> bytes:
    """A CreateTopics request: partitions by name, or whole topics."""
    if isinstance(topics, dict):
        topics = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics.items()]
    values |= {"topics": topics, "timeout_ms": 30_000}
    return codec.encode_request(CREATE, version, values, correlation_id, "etl")


def delete(correlation_id: int, names: list[str | uuid.UUID], *, version: int = 6) -> bytes:
    """A DeleteTopics request, by names or by ids."""
    if version < 6:
        return codec.encode_request(DELETE, version, {"topic_names": names, "timeout_ms": 30_000}, correlation_id, "etl")
    topics = [
        {"name": None, "topic_id": each} if isinstance(each, uuid.UUID) else {"name": each, "topic_id": uuid.UUID(int=0)}
        for each in names
    ]
    return codec.encode_request(DELETE, version, {"topics": topics, "timeout_ms": 30_000}, correlation_id, "etl")


def grow(correlation_id: int, topics: dict[str, int] | list[dict[str, Any]], *, version: int = 3, **values: Any) -> bytes:
    """A CreatePartitions request: new counts by name, or whole topics."""
    if isinstance(topics, dict):
        topics = [{"name": name, "count": count, "assignments": None} for name, count in topics.items()]
    values = {"topics": topics, "timeout_ms": 30_000, "validate_only": False} | values
    return codec.encode_request(GROW, version, values, correlation_id, "etl")


def answered(
    key: int, correlation_id: int, results: list[dict[str, Any]], *, version: int | None = None, throttle_time_ms: int = 0
) -> bytes:
    """Return the response to any of the three requests."""
    version = LATEST[ApiKey(key)] if version is None else version
    field = {CREATE: "topics", DELETE: "responses", GROW: "results"}[ApiKey(key)]
    known = codec.response_class(key).fields[field].data_class.fields
    filled = []
    for result in results:
        defaults = {"error_code": 0, "error_message": None, "topic_id": uuid.UUID(int=0), "configs": []}
        if key == CREATE:
            defaults |= {"num_partitions": -1, "replication_factor": -1}
        whole = defaults | result
        filled.append({name: value for name, value in whole.items() if name in known and known[name].for_version_q(version)})
    values: dict[str, Any] = {field: filled}
    if version >= APIS[key].throttle_since:
        values["throttle_time_ms"] = throttle_time_ms
    return codec.encode_response(key, version, values, correlation_id)


def refused(name: str | None, topic_id: uuid.UUID | None = None) -> dict[str, Any]:
    """Return Weir's result for a topic over the quota."""
    return {"name": name, "error_code": 89} | ({"topic_id": topic_id} if topic_id else {})


def metadata_request(correlation_id: int, names: list[str], *, create: bool = False) -> bytes:
    """Return Weir's own request for topics by name."""
    values = {"topics": [{"name": name} for name in sorted(names)], "allow_auto_topic_creation": create}
    return codec.encode_request(ApiKey.METADATA, 4, values, correlation_id, "etl")


def metadata_request_by_id(correlation_id: int, names: list[str]) -> bytes:
    """Return Weir's own request for the topics of these names by id."""
    topics = [{"name": None, "topic_id": each} for each in sorted(map(id_of, names), key=lambda each: each.bytes)]
    values = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return codec.encode_request(ApiKey.METADATA, 12, values, correlation_id, "etl")


def metadata_answer(correlation_id: int, topics: dict[str, int], *, version: int = 4, error_code: int = 3) -> bytes:
    """Return the broker's answer: the partitions of each topic. A topic with 0 has the error (3: unknown topic)."""
    described = []
    for name, count in topics.items():
        partitions = [
            {"error_code": 0, "partition_index": index, "leader_id": 0, "replica_nodes": [0], "isr_nodes": [0]}
            for index in range(count)
        ]
        topic = {"error_code": 0 if count else error_code, "name": name, "is_internal": False, "partitions": partitions}
        described.append(topic | ({"topic_id": id_of(name)} if version >= 10 else {}))
    brokers = [{"node_id": 0, "host": "kafka-0", "port": 9092, "rack": None}]
    values = {"throttle_time_ms": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 0, "topics": described}
    return codec.encode_response(ApiKey.METADATA, version, values, correlation_id)


class Controller:
    """A broker with a controller without quotas. It executes all requests and refuses as KRaft does."""

    def __init__(self, transcript: Transcript, topics: dict[str, int] | None = None, *, num_partitions: int = 1) -> None:
        self.t = transcript
        self.topics = dict(topics or {})
        self.num_partitions = num_partitions
        self.refusals: dict[str, int] = {}
        self.forwarded: list[str] = []

    def serve(self) -> None:
        """Answer requests until no further request arrives."""
        while self.t.broker_inbox:
            inbox, self.t.broker_inbox = bytes(self.t.broker_inbox), bytearray()
            while inbox:
                size = 4 + int.from_bytes(inbox[:4], "big")
                frame, inbox = inbox[:size], inbox[size:]
                self.t.broker_answers(self._answer(frame))
            if self.t.called_ready:
                self.t.run_ready()

    def _answer(self, frame: bytes) -> bytes:
        key, version, correlation_id = (int.from_bytes(frame[at : at + n], "big") for at, n in ((4, 2), (6, 2), (8, 4)))
        if key == ApiKey.API_VERSIONS:
            ranges = [{"api_key": 3, "min_version": 0, "max_version": 13}]
            return codec.encode_response(key, 0, {"error_code": 0, "api_keys": ranges}, correlation_id)
        request = codec.request_class(key).decode(frame[4:], version=version, header=True)
        if key == ApiKey.METADATA:
            names = [topic.name or self._named(topic.topic_id) for topic in request.topics]
            return metadata_answer(correlation_id, {name: self.topics.get(name, 0) for name in names}, version=version)
        results = []
        wanted = request.topic_names if key == DELETE and version < 6 else request.topics
        for topic in wanted:
            name = topic if isinstance(topic, str) else topic.name or self._named(topic.topic_id)
            self.forwarded.append(name)
            error = self.refusals.get(name) or self._change(key, name, topic)
            result = {"name": name, "error_code": error}
            if key == CREATE and not error:
                result |= {"num_partitions": self.topics[name], "topic_id": id_of(name)}
            if key == DELETE and version >= 6:
                result["topic_id"] = id_of(name)
            results.append(result)
        return answered(key, correlation_id, results, version=version)

    def _named(self, topic_id: uuid.UUID) -> str:
        return next(name for name in self.topics if id_of(name) == topic_id)

    def _change(self, key: int, name: str, topic: Any) -> int:
        if key == CREATE:
            if name in self.topics:
                return 36
            count = len(topic.assignments) or topic.num_partitions
            self.topics[name] = self.num_partitions if count == -1 else count
        elif name not in self.topics:
            return 3
        elif key == DELETE:
            del self.topics[name]
        elif topic.count <= self.topics[name]:
            return 37
        else:
            self.topics[name] = topic.count
        return 0


def tokens(t: Transcript) -> float | None:
    return t.row("controller_mutation").tokens


def reserved(t: Transcript) -> float:
    """The partitions of the forwarded topics whose results are still unknown."""
    (bucket,) = (bucket for bucket in t.engine.buckets() if bucket.kind is KIND and bucket.resolution.tags.client_id == "etl")
    return bucket.reserved
