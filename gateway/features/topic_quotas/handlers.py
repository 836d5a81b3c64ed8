"""`bytes.in.per.sec.threshold` as a topic config: Weir sets, removes and describes it. The broker keeps all other configs.

Weir takes the key out of IncrementalAlterConfigs and AlterConfigs, and forwards the other configs. As with client quotas, Weir
saves and applies its own change first. If the broker then refuses the other configs of the topic, Weir undoes its change.
The broker answers DescribeConfigs, and Weir adds the key to the answer.

A threshold is a quota, so the right to alter quotas decides about it (`AlterRight`).
"""

from dataclasses import dataclass
from typing import Final

from gateway.alter_queue import AlterTask
from gateway.alter_right import AlterRight
from gateway.alterations import QuotaApiError
from gateway.features.topic_quotas.thresholds import KEY, TopicThresholds, parse, parts_of, shown
from gateway.proxy.collected import KeptBytes
from gateway.proxy.handler import (
    COLLECT,
    DEFER,
    FORWARD,
    MAX_COLLECTED_REQUEST_BYTES,
    MAX_UNTRUSTED_BYTES,
    WAIT,
    Answer,
    Connection,
    HandlerFactory,
    Replace,
    Request,
    RequestHandler,
    Verdict,
)
from gateway.proxy.lookups import Lookups
from protocol.api_keys import ApiKey
from protocol.bodies import configs
from protocol.bodies import topic_metadata as metadata
from protocol.bodies.configs import AlteredResource, ConfigOp, DescribedThreshold
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHeader

MAX_DESCRIBED_BYTES: Final = 1 << 20
"""The longest answer to DescribeConfigs to which Weir adds thresholds: some 150 topics. Longer answers pass unchanged."""

OP_BYTES: Final = 300
"""The memory of one change of a config, until the broker's answer."""

_KEY_BYTES: Final = KEY.encode()
_NOT_THERE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""The broker's errors for a topic that can get no threshold, as it does not exist for the client."""


@dataclass(slots=True)
class _TopicChange:
    """Weir's part of one resource. If it `changes` the threshold, `threshold` is the new one (None: remove it).

    `named`: the request has the key. `same`: the change has no effect, so it needs no right.
    """

    topic: str
    threshold: float | None = None
    changes: bool = False
    named: bool = True
    same: bool = False
    error: int = ErrorCode.NONE
    message: str | None = None

    def fail(self, error: int, message: str | None) -> None:
        self.error, self.message, self.changes = error, message, False


class AlterConfigs:
    """One IncrementalAlterConfigs or AlterConfigs."""

    def __init__(self, connection: Connection, thresholds: TopicThresholds) -> None:
        self._connection = connection
        self._thresholds = thresholds
        self._user = connection.client.user
        self._right = AlterRight(connection, thresholds.queue)
        self._parsed = False
        self._begun = False
        self._lookups = Lookups(connection)
        self._own: dict[int, _TopicChange] = {}
        self._task: AlterTask | None = None
        self._forwarded: set[int] = set()
        self._kept_bytes = KeptBytes(connection.keep)
        self._key = 0
        self._version = 0
        self._correlation_id = 0

    def handle(self, request: Request, now: float) -> Verdict:
        self._connection.client.use(request.header.client_id, now)
        if not self._parsed:
            verdict = self._collect(request, now)
            if verdict is not None:
                return verdict
            self._parsed = True
            self._parse(*request.cut())
            if self._own and self._connection.waits_for_answers(now):
                return DEFER
            if self._own:
                self._kept_bytes.are(OP_BYTES * sum([1 + len(resource.ops) for resource in self._request.resources]))
        if not self._begun:
            if any(own.changes for own in self._own.values()) and not self._right.known(request.header, now):
                return WAIT
            self._begun = True
            self._begin(request.header, now)
        if self._lookups.pending or (self._task is not None and self._task.alteration is None):
            return WAIT
        if self._own:
            return self._forward_rest(request, now)
        self._kept_bytes.are(0)
        return FORWARD

    def _collect(self, request: Request, now: float) -> Verdict | None:
        """The verdict on a request that is not whole or too long; None if Weir opens it.

        A longer request goes to the broker with the key. The broker does not know the key and refuses it.
        """
        if request.frame_bytes > MAX_UNTRUSTED_BYTES:
            if request.frame_bytes > MAX_COLLECTED_REQUEST_BYTES:
                return FORWARD
            if not self._right.known(request.header, now):
                return WAIT
            if self._right.refusal is not None:
                return FORWARD
        return None if request.whole else COLLECT

    def _forward_rest(self, request: Request, now: float) -> Verdict:
        """Forward the broker's part of the changes, or answer the request if there is none."""
        frame, header = request.cut()
        changed = self._task.alteration.results if self._task is not None and self._task.alteration is not None else {}
        kept: list[tuple[AlteredResource, list[ConfigOp]]] = []
        for number, resource in enumerate(self._request.resources):
            own = self._own.get(number)
            ops = list(resource.ops)
            if own is not None:
                result = changed.get(parts_of(own.topic)) if own.changes else None
                if result is not None and result.error_code != ErrorCode.NONE:
                    own.fail(result.error_code, result.message)
                ops = [op for op in ops if op.name != KEY]
                # AlterConfigs removes all configs that it does not name, so an empty AlterConfigs is forwarded as well.
                if own.error != ErrorCode.NONE or (not ops and header.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS):
                    continue
            kept.append((resource, ops))
            self._forwarded.add(number)
        if kept:
            request.intercept(self)
            # Otherwise a client that pipelines could have Weir keep the changes of a thousand requests.
            self._connection.throttle.hold(request.entry, now)
            return Replace(configs.keep(self._key, self._version, frame, self._request, kept))
        self._kept_bytes.are(0)
        results = [self._result(resource, self._own.get(number)) for number, resource in enumerate(self._request.resources)]
        return Answer(configs.make_answer(self._key, self._version, self._correlation_id, results))

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        """Merge both results in the request's order, and undo Weir's part of a topic that the broker refuses."""
        self._kept_bytes.are(0)
        theirs = configs.read_alter_response(self._key, self._version, frame)
        results: list[bytes] = []
        for number, resource in enumerate(self._request.resources):
            own = self._own.get(number)
            if number not in self._forwarded:
                results.append(self._result(resource, own))
                continue
            found = theirs.get((resource.resource_type, resource.name))
            if found is None:
                continue
            results.append(found.encoded)
            if found.error != ErrorCode.NONE and own is not None and own.changes and self._task is not None:
                self._thresholds.queue.undo(self._task, parts_of(own.topic))
        return configs.with_results(self._key, self._version, frame, results)

    def _result(self, resource: AlteredResource, own: _TopicChange | None) -> bytes:
        error, message = (ErrorCode.NONE, None) if own is None else (own.error, own.message)
        return configs.result(self._key, self._version, error, message, resource)

    def _parse(self, frame: bytes, header: RequestHeader) -> None:
        """Find Weir's part of each resource, as it is for a client with the right."""
        self._key, self._version, self._correlation_id = header.api_key, header.api_version, header.correlation_id
        legacy = header.api_key == ApiKey.ALTER_CONFIGS and self._thresholds.dynamic
        if not legacy and _KEY_BYTES not in frame:
            return
        self._request = configs.read_alter_request(header.api_key, header.api_version, frame, header.body_offset)
        seen: set[str] = set()
        for number, resource in enumerate(self._request.resources):
            if resource.resource_type != configs.TOPIC:
                continue
            own = self._own_part(resource)
            if own is None:
                continue
            if resource.name in seen:
                own.fail(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            seen.add(resource.name)
            self._own[number] = own

    def _own_part(self, resource: AlteredResource) -> _TopicChange | None:
        """Weir's part of a topic's changes; None if there is none."""
        ops = [op for op in resource.ops if op.name == KEY]
        threshold = self._thresholds.threshold(resource.name)
        if not ops:  # AlterConfigs removes the configs that it does not name
            if self._key != ApiKey.ALTER_CONFIGS or threshold.dynamic is None:
                return None
            return _TopicChange(resource.name, changes=True, named=False)
        own = _TopicChange(resource.name, changes=True)
        try:
            own.threshold = _wanted(ops)
        except QuotaApiError as error:
            own.fail(error.code, error.message)
            return own
        own.same = threshold.dynamic is None if own.threshold is None else threshold.effective == own.threshold
        return own

    def _begin(self, header: RequestHeader, now: float) -> None:
        """Drop the changes for which the client lacks the right, and start the others."""
        refusal = self._right.refusal
        if refusal is not None:
            for number, own in list(self._own.items()):
                if not own.named:
                    del self._own[number]
                elif own.same:  # a client that changes another config by AlterConfigs sends all described configs back
                    own.changes = False
                elif own.changes:
                    own.fail(refusal.error_code, refusal.message)
        # The threshold of a deleted topic can still be removed, so only new thresholds need an existing topic.
        names = {own.topic for own in self._own.values() if own.changes and own.threshold is not None}
        for request in metadata.ask_by_name(header.correlation_id, header.client_id, names):
            self._lookups.send(request, self._take_topics, now)
        if not names:
            self._change()

    def _take_topics(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        errors = {topic.name: topic.error for topic in metadata.read_topics(metadata.BY_NAME, answer)}
        for own in self._own.values():
            error = errors.get(own.topic, ErrorCode.NONE)
            if own.changes and own.threshold is not None and error in _NOT_THERE:
                own.fail(error, None)
        if self._lookups.pending == 0:
            self._change()

    def _change(self) -> None:
        changes = {own.topic: own.threshold for own in self._own.values() if own.changes}
        if changes:
            self._task = self._thresholds.alter_thresholds(
                changes, self._user, self._connection.ready, validate_only=self._request.validate_only
            )


class DescribeConfigs:
    """One DescribeConfigs: adds the thresholds of topics to the broker's answer."""

    def __init__(self, connection: Connection, thresholds: TopicThresholds) -> None:
        self._thresholds = thresholds
        self._connection = connection
        self._version = 0
        self._found: dict[str, DescribedThreshold] = {}
        self._synonyms = False

    def handle(self, request: Request, now: float) -> Verdict:
        """Note the topics that have thresholds. The broker decides if the client may see the topics."""
        self._connection.client.use(request.header.client_id, now)
        if request.frame_bytes > MAX_UNTRUSTED_BYTES:  # the answer would be too long to add thresholds
            return FORWARD
        if not request.whole:
            return COLLECT
        frame, header = request.cut()
        self._version = header.api_version
        body = configs.read_describe_request(header.api_version, frame, header.body_offset)
        self._synonyms = body.synonyms
        for topic, keys in body.topics.items():
            threshold = self._thresholds.threshold(topic)
            if threshold.effective is not None and (not keys or KEY in keys):
                self._found[topic] = DescribedThreshold(shown(threshold.dynamic), shown(threshold.file))
        if self._found:
            request.intercept(self, longest=MAX_DESCRIBED_BYTES)
        return FORWARD

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        return configs.with_configs(self._version, frame, KEY, self._found, synonyms=self._synonyms)


def handler_factories(thresholds: TopicThresholds) -> dict[int, HandlerFactory]:
    """All requests pass unchanged as long as topics have no quotas."""

    def alter(connection: Connection) -> RequestHandler | None:
        return AlterConfigs(connection, thresholds) if thresholds.topics_limited else None

    def describe(connection: Connection) -> RequestHandler | None:
        return DescribeConfigs(connection, thresholds) if thresholds.topics_limited else None

    return {
        int(ApiKey.INCREMENTAL_ALTER_CONFIGS): alter,
        int(ApiKey.ALTER_CONFIGS): alter,
        int(ApiKey.DESCRIBE_CONFIGS): describe,
    }


def _wanted(ops: list[ConfigOp]) -> float | None:
    """The new threshold of a topic; None to remove it. Raises QuotaApiError."""
    if len(ops) > 1:
        raise QuotaApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    op = ops[0]
    if op.operation == configs.DELETE:
        return None
    if op.operation != configs.SET:
        raise QuotaApiError(
            ErrorCode.INVALID_CONFIG, f"Can't append to or subtract from key {KEY}: its type is not LIST. Use SET."
        )
    return parse(op.value)
