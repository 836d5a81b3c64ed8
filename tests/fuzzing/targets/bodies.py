"""Each function of `protocol.bodies` that takes a peer's bytes raises the errors of its docstring only.

The functions come from the code: a new one is fuzzed at once. Its arguments are found by their names (`_arguments`).
"""

import importlib
import inspect
import pkgutil
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from protocol import bodies
from protocol.api_keys import APIS, ApiKey
from protocol.bodies.addresses import Broker
from protocol.bodies.client_quotas import DescribeResponse
from protocol.bodies.fetch import FetchHead
from protocol.bodies.topic_lists import TOPICS_APIS
from protocol.errors import Incomplete, InvalidFrame
from protocol.headers import RequestHeader
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS
from tests.protocol.golden import GOLDEN
from tests.protocol.samples import response_frame

SHARE = 3.0

KEYS: dict[str, tuple[ApiKey, ...]] = {
    "addresses.rewrite_metadata": (ApiKey.METADATA,),
    "addresses.rewrite_describe_cluster": (ApiKey.DESCRIBE_CLUSTER,),
    "api_versions": (ApiKey.API_VERSIONS,),
    "client_quotas.read_alter": (ApiKey.ALTER_CLIENT_QUOTAS,),
    "client_quotas.read_describe": (ApiKey.DESCRIBE_CLIENT_QUOTAS,),
    "configs.read_describe": (ApiKey.DESCRIBE_CONFIGS,),
    "configs": (ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS),
    "fetch.acquisition": (ApiKey.SHARE_FETCH,),
    "fetch.peek_share_fetch": (ApiKey.SHARE_FETCH,),
    "fetch": (ApiKey.FETCH,),
    "find_coordinator": (ApiKey.FIND_COORDINATOR,),
    "group_membership.session": (ApiKey.JOIN_GROUP,),
    "group_membership.commits": (ApiKey.OFFSET_COMMIT,),
    "group_membership": (ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.OFFSET_COMMIT),
    "metadata_request": (ApiKey.METADATA,),
    "node_endpoints.rewrite_frame": (ApiKey.PRODUCE, ApiKey.SHARE_ACKNOWLEDGE, ApiKey.FETCH, ApiKey.SHARE_FETCH),
    "node_endpoints.rewrite_tail": (ApiKey.FETCH, ApiKey.SHARE_FETCH),
    "produce": (ApiKey.PRODUCE,),
    "sasl.read_handshake": (ApiKey.SASL_HANDSHAKE,),
    "sasl": (ApiKey.SASL_AUTHENTICATE,),
    "topic_lists": tuple(ApiKey(key) for key in TOPICS_APIS),
    "topic_metadata": (ApiKey.METADATA,),
}
"""The APIs of each function, by the beginning of its name; the longest beginning counts."""

LEAST_VERSION = {"node_endpoints.rewrite_tail": 16, "produce.single_partition_throttle": 1}
"""The first version for which a function may be called, where that is not 0. `rewrite_tail` is for Fetch from version 16 on."""

ELSEWHERE = {
    "addresses.replaced", "addresses.spliced", "addresses.read_brokers",  # by the rewriting functions
    "configs.keep", "configs.with_configs", "configs.with_results", "configs.result",  # by the target `session`
    "client_quotas.write_alter_request", "client_quotas.write_describe_request",
    "fetch.batch_size", "fetch.with_limits", "fetch.topic_count", "fetch.partition_count", "fetch.high_watermark",
    "lag_scanner.", "tail_scanner.",  # by the target `scanners`
    "node_endpoints.rewrite_behind",
    "produce.only_topic", "produce.skip_errors", "produce.read_topic",
    "produced_topics.producer_sequence", "produced_topics.scan_whole", "produced_topics.remainder", "produced_topics.without",
    "produced_topics.merged",
    "topic_lists.keep", "topic_lists.read_results", "topic_lists.answer_with",
    "metadata_request.without_creation",  # by the target `session`
    "topic_metadata.read_answer",
}  # fmt: skip
"""Functions that take more than bytes, and the targets in which others call them."""

_BYTES = ("frame", "buf", "tail")


class Input(NamedTuple):
    """The arguments by their names. `frame`: the bytes; those before `seen` have arrived."""

    frame: bytes
    seen: int
    key: int
    version: int
    translation: int
    sized: bool


class Function(NamedTuple):
    name: str
    call: Callable[..., Any]
    keys: tuple[ApiKey, ...]
    errors: tuple[type[Exception], ...]
    is_response: bool


def _functions() -> list[Function]:
    found = []
    for module in pkgutil.iter_modules(bodies.__path__):
        members = vars(importlib.import_module(f"protocol.bodies.{module.name}"))
        for name, call in sorted(members.items()):
            full = f"{module.name}.{name}"
            if not inspect.isfunction(call) or name.startswith("_") or call.__module__ != f"protocol.bodies.{module.name}":
                continue
            parameters = inspect.signature(call).parameters
            if not any(each in parameters for each in _BYTES) or full in ELSEWHERE:
                continue
            words = inspect.getdoc(call) or ""
            errors = {each.__name__: each for each in (Incomplete, InvalidFrame)}
            declared = tuple(errors[word] for word in errors if re.search(rf"`{word}`", words))
            named = max((start for start in KEYS if full.startswith(start)), key=len, default=None)
            assert named is not None, f"protocol.bodies.{full}: add its API to KEYS, or the function to ELSEWHERE"
            unknown = parameters.keys() - _ARGUMENTS.keys()
            assert not unknown, f"protocol.bodies.{full}: add the parameters {unknown} to _ARGUMENTS"
            response = not {"body_offset", "header", "body"} & parameters.keys()
            found.append(Function(full, call, KEYS[named], declared, response))
    return found


_ARGUMENTS: dict[str, Callable[[Input], Any]] = {
    "frame": lambda given: given.frame,
    "tail": lambda given: given.frame[4:],
    "buf": lambda given: given.frame,
    "start": lambda _: 0,
    "end": lambda given: given.seen,
    "seen": lambda given: given.seen,
    "body_offset": lambda _: 4,
    "body": lambda _: 4,
    "frame_end": lambda given: len(given.frame),
    "after": lambda given: len(given.frame),
    "api_key": lambda given: given.key,
    "version": lambda given: given.version,
    "header": lambda given: RequestHeader(given.key, given.version, 7, "etl", 4),
    "translate": lambda given: TRANSLATIONS[given.translation % len(TRANSLATIONS)],
    "learn": lambda given: _learn if given.translation % 2 else None,
}


def _learn(cluster_id: str | None, brokers: Sequence[Broker]) -> None:
    assert cluster_id is None or type(cluster_id) is str
    assert all(isinstance(broker, Broker) for broker in brokers)


FUNCTIONS = _functions()


def check(data: bytes) -> None:
    """Bytes for the function, the API, the version, the translation and the bytes that have arrived; then the frame."""
    if len(data) < 8:
        return
    function = FUNCTIONS[data[0] % len(FUNCTIONS)]
    key = function.keys[data[1] % len(function.keys)]
    least = LEAST_VERSION.get(function.name, 0) if key != ApiKey.SHARE_FETCH else 0
    version = least + data[2] % (APIS[key].max_version + 1 - least)
    frame = data[6:] if data[3] & 64 else (len(data) - 6).to_bytes(4, "big") + data[6:]
    seen = min(int.from_bytes(data[4:6], "big"), len(frame))
    given = Input(frame, seen, key, version, data[3], not data[3] & 64)
    partial = bool({"end", "seen"} & inspect.signature(function.call).parameters.keys())
    arguments = {name: _ARGUMENTS[name](given) for name in inspect.signature(function.call).parameters if name in _ARGUMENTS}
    if function.name == "api_versions.max_version":
        arguments["api_key"] = data[1]
    if partial and not function.is_response and seen < 4:
        return  # the body begins behind them
    try:
        result = function.call(**arguments)
    except function.errors as error:
        assert not isinstance(error, Incomplete) or partial, "the whole frame is there"
        if isinstance(error, InvalidFrame):
            assert error.reason.isidentifier()
        return
    _check_result(result, frame)


def _check_result(result: Any, frame: bytes) -> None:
    if isinstance(result, FetchHead):
        assert -1 <= result.max_bytes_offset <= len(frame) - 4
        return
    if isinstance(result, DescribeResponse):
        with suppress(InvalidFrame):
            list(result.entries or ())
        return
    start, end = getattr(result, "start", None), getattr(result, "end", None)
    if start is not None and end is not None:
        assert 0 <= start <= end <= len(frame)
    if isinstance(result, bytes):
        assert len(result) <= 100 + 60 * len(frame)  # a host of the gateway's is longer than one of a byte


def seeds():
    rng = random.Random(2)
    by_key: dict[int, list[tuple[int, bytes]]] = {}
    for each in GOLDEN:
        by_key.setdefault(each.api_key, []).append((each.version, each.frame))
    for number, function in enumerate(FUNCTIONS):
        for index, key in enumerate(function.keys):
            if not function.is_response:
                yield from _requests(number, index, key, rng)
                continue
            newest = min(APIS[key].max_version, codec.response_class(key).max_version)
            made = [(version, response_frame(key, version, rng)) for version in {newest, newest // 2, 0}]
            least = LEAST_VERSION.get(function.name, 0) if key != ApiKey.SHARE_FETCH else 0
            for version, frame in (*made, *by_key.get(key, ())[-2:]):
                if least <= version and len(frame) < 1_500:
                    yield bytes((number, index, version - least, 0, 255, 255)) + frame[4:]


def _requests(number: int, index: int, key: int, rng: random.Random):
    message = codec.request_class(key)
    for version in {0, min(APIS[key].max_version, message.max_version)}:
        try:
            frame = message(version=version).encode(header=False, framed=False)
        except (TypeError, ValueError, AttributeError):
            continue
        yield bytes((number, index, version, 0, 255, 255)) + bytes(frame)
    yield bytes((number, index, 3, 0, 0, 9)) + rng.randbytes(40)
