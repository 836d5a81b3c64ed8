"""A connection with any bytes of client and broker ends with a declared error or goes on; chunks do not change its output.

All handlers are in place: quotas, mutations, topic quotas, the quota API, topic configs, SASL and the addresses.
"""

import random
from collections.abc import Callable, Iterator

from gateway.alter_queue import BROKER_ACLS, AlterQueue
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.quota_api import handlers as quota_api
from gateway.features.quota_api.rules import ListedQuotas, alteration, described
from gateway.features.topic_quotas import handlers as topic_configs
from gateway.features.topic_quotas.produce_inspector import TopicInspection
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.features.topic_quotas.thresholds import TopicLimits, TopicThresholds
from gateway.proxy.counters import Counters
from gateway.proxy.handler import EndConnection
from gateway.proxy.handlers.sasl import AuthenticationGate, SaslObserver
from gateway.proxy.in_flight import OwnRequest
from gateway.proxy.produce_gate import ProducedTopics
from gateway.proxy.response_bodies import SEARCHED_SINCE
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.kinds import BYTES, CLIENT_KINDS, KINDS
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from protocol.api_keys import APIS, ApiKey
from protocol.errors import ProtocolError
from tests.fuzzing.targets import sasl
from tests.fuzzing.targets.scanners import produce_body
from tests.gateway.features.controller_mutations import mutation_session as topics
from tests.gateway.features.topic_quotas.listing import list_topics
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript
from tests.protocol import codec
from tests.protocol.samples import response_frame

SHARE = 4.0
STEPS_PER_BYTE = 3_000
MAX_FRAME_BYTES = 3_000
FRAME, RAW, ANSWER, BROKER_RAW, WAIT, READY = range(6)
_DEBT = {KINDS[name].config_key: 50.0 if KINDS[name].unit == BYTES else 2.0 for name in CLIENT_KINDS}
_TIGHT = QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), _DEBT),))
_FREE = QuotaSettings()
LOGIN, TIGHT, TOPICS, ACLS = 1, 2, 4, 8


class Session(Transcript):
    """`options`: any of LOGIN (SASL is required), TIGHT (quotas), TOPICS (topic quotas), ACLS (the brokers' ACLs decide)."""

    def __init__(self, options: int) -> None:
        self.queue = AlterQueue(BROKER_ACLS if options & ACLS else ("User:ANONYMOUS", "User:alice"))
        thresholds = TopicThresholds(self.queue)
        thresholds.of_file = TopicLimits(1_000.0, {"orders": 300.0})
        produced = ProducedTopics()
        if options & TOPICS:
            quotas = TopicQuotas(TopicSettings(200), START, own=OwnTopics())
            list_topics(quotas, {"payments": bytes([1]) * 16, "orders": bytes([2]) * 16})
            produced.make_inspector = TopicInspection(quotas, 19, lambda rejection, now: None).open
        counters = Counters()
        mutations = ControllerMutations()
        mutations.known_topics.learn_defaults({"num.partitions": "3", "auto.create.topics.enable": "true"})
        handlers = {
            **mutations.handlers(),
            **quota_api.handler_factories(self.queue, self.describe, at_once),
            **topic_configs.handler_factories(thresholds),
            **SaslObserver(counters, "sub").handler_factories(),
        }
        super().__init__(
            _TIGHT if options & TIGHT else _FREE,
            handlers=handlers,
            counters=counters,
            topics=produced,
            own_topics=OwnTopics(["__weir"]),
            authentication_gate=AuthenticationGate(1_000) if options & LOGIN else None,
            max_frame_bytes=MAX_FRAME_BYTES,
        )
        self.answered = 0
        self.searched = False

    @staticmethod
    def describe(components, *, strict):
        return described(ListedQuotas({}, (), QuotaTable()), components, strict=strict)

    def finish_tasks(self) -> None:
        """Carry out the changes that clients have requested."""
        tasks = self.queue.take()
        for task in tasks:
            rules = task.rules
            task.alteration = (
                alteration(task.request.entries, lambda ip: True) if rules is None else rules.alteration(task.request)
            )
            task.done()
        if self.called_ready:
            self.run_ready()

    def answer(self, body: bytes, by: int | None) -> None:
        """The broker answers its oldest request."""
        if self.core.in_flight:
            entry = self.core.in_flight[0]
            key, version = entry.key >> 16, entry.key & 0xFFFF
            self.searched |= version >= SEARCHED_SINCE.get(key, 1 << 15)
            raw = getattr(entry.special, "raw", False)
            frame = body if raw else entry.correlation_id.to_bytes(4, "big", signed=True) + body
            self.broker_answers(len(frame).to_bytes(4, "big") + frame, by=by)


def _play(data: bytes, by: int | None) -> tuple[Session, str]:
    session = Session(data[0])
    try:
        for kind, payload in _steps(data[2:]):
            if kind == FRAME:
                session.client_sends(len(payload).to_bytes(4, "big") + payload, by=by)
            elif kind == RAW:
                session.client_sends(payload, by=by)
            elif kind == ANSWER:
                session.answer(payload, by)
            elif kind == BROKER_RAW:
                session.broker_answers(payload, by=by)
            elif kind == WAIT:
                session.passes(sum(payload))
            else:
                session.finish_tasks()
    except ProtocolError as error:
        assert error.reason.isidentifier()
        return session, error.reason
    except EndConnection as end:
        return session, str(end)
    finally:
        session.core.close(session.now)
    return session, ""


def _steps(data: bytes) -> Iterator[tuple[int, bytes]]:
    """A byte for the kind, two for the length, and the bytes."""
    pos = 0
    while pos + 3 <= len(data):
        size = int.from_bytes(data[pos + 1 : pos + 3], "big")
        yield data[pos] % 6, data[pos + 3 : pos + 3 + size]
        pos += 3 + size


def check(data: bytes) -> None:
    """A byte for the options, one for the length of chunks, then the steps of client, broker and clock."""
    if len(data) < 5:
        return
    whole, reason = _play(data, None)
    assert len(whole.core.requests._splitter.framing.head) <= MAX_FRAME_BYTES + 4
    if data[0] & (TIGHT | TOPICS):
        _play(data, 1 + data[1])
        return
    cut, other = _play(data, 1 + data[1])
    to_broker, in_chunks = bytes(whole.broker_inbox), bytes(cut.broker_inbox)
    if not reason and not other:
        assert to_broker == in_chunks
        assert whole.searched or whole.client_inbox == cut.client_inbox
        assert whole.counters.requests == cut.counters.requests
        assert _heads(whole) == _heads(cut)
    else:
        assert to_broker.startswith(in_chunks) or in_chunks.startswith(to_broker)


def _heads(session: Session) -> list[tuple[int, int]]:
    return [(entry.correlation_id, entry.key) for entry in session.core.in_flight if not isinstance(entry.special, OwnRequest)]


def _step(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(2, "big") + payload


def _ask(frame: bytes, *answers: bytes) -> bytes:
    """A request, and the answers to it and to Weir's own requests. All of them are whole frames."""
    return _step(FRAME, frame[4:]) + b"".join(_step(ANSWER, answer[8:]) + _step(READY, b"") for answer in answers)


def seeds():
    rng = random.Random(5)
    made: list[Callable[[], bytes]] = [
        lambda: _ask(m.produce(1, version=9), m.produced(1, version=9)),
        lambda: _ask(m.produce(2, version=7, acks=0)) + _ask(m.produce(3, size=90), m.produced(3)),
        lambda: _ask(m.fetch(4), m.fetched(4)) + _ask(m.fetch(5, version=5, session=(7, 3)), m.fetched(5, version=5)),
        lambda: _ask(m.metadata(6), m.described(6, m.BROKERS)),
        lambda: _ask(m.api_versions(7), m.versions_are(7, [(0, 3, 13), (18, 0, 4)])),
        lambda: _ask(m.heartbeat(8), m.beat(8, throttle_time_ms=5)),
        lambda: _ask(topics.create(9, {"a": 9, "b": 1}), response_frame(ApiKey.CREATE_TOPICS, 7, rng)),
        lambda: _ask(
            topics.delete(1, ["a"], version=4), response_frame(3, 4, rng), response_frame(ApiKey.DELETE_TOPICS, 4, rng)
        ),
        lambda: _ask(topics.grow(1, {"a": 5}), response_frame(3, 4, rng), response_frame(ApiKey.CREATE_PARTITIONS, 3, rng)),
        _alter_quotas,
        _describe_quotas,
        _creating_metadata,
        _alter_configs,
        _describe_configs,
    ]
    for number, make in enumerate(made):
        for options in (0, TIGHT, TIGHT | TOPICS | ACLS):
            yield bytes((options, number)) + make() + _step(WAIT, b"\5\310")
    for version in (0, 3, 8, 9, 13):
        body = produce_body(version, rng)
        head = b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\1\0\3etl" + (b"\0" if version >= 9 else b"")
        answer = response_frame(0, version, rng)
        yield bytes((TOPICS, 9)) + _step(FRAME, head + body) + _step(ANSWER, answer[8:])
    for key in (ApiKey.JOIN_GROUP, ApiKey.FIND_COORDINATOR, ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_CLUSTER, ApiKey.FETCH):
        version = min(APIS[key].max_version, codec.response_class(key).max_version)
        head = int(key).to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\0\3etl\0"
        yield bytes((0, 3)) + _step(FRAME, head + bytes(40)) + _step(ANSWER, response_frame(key, version, rng)[8:])
    yield bytes((LOGIN, 6)) + _log_in(b"PLAIN", b"\0alice\0secret", b"") + _ask(m.produce(1), m.produced(1))
    yield bytes((LOGIN, 6)) + _log_in(b"OAUTHBEARER", b"n,,\1auth=Bearer e30." + sasl.SUBJECT + b".c2ln\1\1", b"")


def _log_in(mechanism: bytes, token: bytes, answer: bytes) -> bytes:
    handshake = b"\0\x11\0\1\0\0\0\1\0\3etl" + len(mechanism).to_bytes(2, "big") + mechanism
    authenticate = b"\0\x24\0\1\0\0\0\2\0\3etl" + len(token).to_bytes(4, "big") + token
    return (
        _step(FRAME, handshake) + _step(ANSWER, b"\0\0\0\0\0\1" + len(mechanism).to_bytes(2, "big") + mechanism)
        + _step(FRAME, authenticate) + _step(ANSWER, b"\0\0\xff\xff" + len(answer).to_bytes(4, "big") + answer + bytes(8))
    )  # fmt: skip


def _alter_quotas() -> bytes:
    entity = [{"entity_type": "user", "entity_name": "alice"}]
    ops = [
        {"key": "producer_byte_rate", "value": 5.0, "remove": False},
        {"key": "request_percentage", "value": 1.0, "remove": False},
    ]
    values = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    answer = {"throttle_time_ms": 0, "entries": [{"error_code": 0, "error_message": None, "entity": entity}]}
    frame = codec.encode_response(ApiKey.ALTER_CLIENT_QUOTAS, 0, answer)
    return _ask(codec.encode_request(ApiKey.ALTER_CLIENT_QUOTAS, 1, values, 1, "etl"), frame, frame)


def _describe_quotas() -> bytes:
    values = {"components": [{"entity_type": "user", "match_type": 2, "match": None}], "strict": False}
    answer = {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "entries": []}
    frame = codec.encode_response(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, answer)
    return _ask(codec.encode_request(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, values, 1, "etl"), frame)


def _creating_metadata() -> bytes:
    values = {"topics": [{"name": "a"}, {"name": "b"}], "allow_auto_topic_creation": True}
    request = codec.encode_request(ApiKey.METADATA, 12, values, 1, "etl")
    missing = topics.metadata_answer(1, {"a": 0, "b": 2})
    return _ask(request, missing, topics.metadata_answer(1, {"a": 0}), topics.metadata_answer(1, {"a": 0}, version=12))


def _alter_configs() -> bytes:
    rows = [
        {"name": "bytes.in.per.sec.threshold", "config_operation": 0, "value": "500"},
        {"name": "x", "config_operation": 1, "value": None},
    ]
    resources = [{"resource_type": 2, "resource_name": "payments", "configs": rows}]
    values = {"resources": resources, "validate_only": False}
    answer = {
        "throttle_time_ms": 0,
        "responses": [{"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "payments"}],
    }
    frame = codec.encode_response(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, answer)
    known = topics.metadata_answer(1, {"payments": 3})
    return _ask(codec.encode_request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values, 1, "etl"), known, frame)


def _describe_configs() -> bytes:
    resources = [{"resource_type": 2, "resource_name": "orders", "configuration_keys": None}]
    values = {"resources": resources, "include_synonyms": True, "include_documentation": False}
    answer = {
        "throttle_time_ms": 0,
        "results": [{"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "orders", "configs": []}],
    }
    frame = codec.encode_response(ApiKey.DESCRIBE_CONFIGS, 4, answer)
    return _ask(codec.encode_request(ApiKey.DESCRIBE_CONFIGS, 4, values, 1, "etl"), frame)
