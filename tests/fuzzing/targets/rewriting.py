"""A rewritten response differs in the rewritten fields only, and an untouched one in no byte.

An independent codec compares them.
"""

import random
from typing import Any

from gateway.proxy.response_bodies import REWRITES, SEARCHED_SINCE, SearchedBody
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import addresses, node_endpoints
from protocol.errors import Incomplete, InvalidFrame
from protocol.throttle import MAX_THROTTLE_MS, patch_throttle, read_throttle, throttle_offset
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS, same
from tests.protocol.golden import GOLDEN
from tests.protocol.samples import response_frame

SHARE = 2.0
KEYS = sorted(codec.KEYS & APIS.keys())
_MOVED = {"brokers", "node_endpoints", "host", "port", "node_id", "coordinators", "api_keys", "error_code", "unknown_tags"}
"""The fields that a rewrite may change. `unknown_tags` has the padding of a response that has gone out in part."""


def check(data: bytes) -> None:
    """A byte for the API, one for the version, two for the translation and the chunks; then the bytes behind the length."""
    if len(data) < 8:
        return
    key = KEYS[data[0] % len(KEYS)]
    version = data[1] % (min(APIS[key].max_version, codec.response_class(key).max_version) + 1)
    frame = (len(data) - 4).to_bytes(4, "big") + data[4:]
    values = _decoded(key, version, frame)
    _check_throttle(key, version, frame, values, data[2])
    if key in REWRITES and version >= REWRITES[key][0]:
        _check_rewrite(key, version, frame, values, data[2])
    if version >= SEARCHED_SINCE.get(key, 1 << 15):
        _check_search(key, version, frame, values, data[2], data[3])


def _decoded(key: int, version: int, frame: bytes) -> dict[str, Any] | None:
    """None: the frame is not one that the independent codec would write."""
    try:
        values = codec.decode_response(key, version, frame)
    except Exception:
        return None
    return None if "unknown_tags" in repr(values) else values


def _check_throttle(key: int, version: int, frame: bytes, values: dict[str, Any] | None, ms: int) -> None:
    try:
        offset = throttle_offset(key, version, frame, 0, len(frame))
    except (InvalidFrame, Incomplete) as error:
        assert values is None or _is_old_layout(key, values)
        assert not isinstance(error, Incomplete), "the whole frame is there"
        return
    for cut in range(0, len(frame), 1 + len(frame) // 16):
        try:
            assert throttle_offset(key, version, frame, 0, cut) == offset
        except Incomplete:
            continue
    if offset < 0:
        return
    assert 8 <= offset <= len(frame) - 4
    patched = bytearray(frame)
    patch_throttle(patched, offset, ms << 24)
    assert read_throttle(patched, offset) == min(ms << 24, MAX_THROTTLE_MS)
    assert bytes(patched[:offset] + patched[offset + 4 :]) == frame[:offset] + frame[offset + 4 :]
    if values is not None and "throttle_time_ms" in values and not _is_old_layout(key, values):
        assert read_throttle(frame, offset) == values["throttle_time_ms"]
        after = _decoded(key, version, bytes(patched))
        assert after == values | {"throttle_time_ms": min(ms << 24, MAX_THROTTLE_MS)}


def _is_old_layout(key: int, values: dict[str, Any]) -> bool:
    """True for an ApiVersions with an error: kafka-python reads its body as version 0, Kafka after UNSUPPORTED_VERSION only."""
    return key == ApiKey.API_VERSIONS and values["error_code"] != 0


def _check_rewrite(key: int, version: int, frame: bytes, values: dict[str, Any] | None, translation: int) -> None:
    rewrite = REWRITES[key][1]
    try:
        copied = rewrite(version, frame, same, None)
    except InvalidFrame:
        return  # some fields that the independent codec accepts are too long for Kafka
    assert int.from_bytes(copied[:4], "big") == len(copied) - 4
    assert rewrite(version, copied, same, None) == copied, "a copy is copied byte for byte"
    if values is not None and key != ApiKey.API_VERSIONS:
        assert copied == frame or "None" in repr(values.get("brokers", values))
    translate = TRANSLATIONS[translation % len(TRANSLATIONS)]
    changed = rewrite(version, frame, translate, None)
    if key == ApiKey.METADATA:
        _check_front(version, frame, translate, changed)
    assert int.from_bytes(changed[:4], "big") == len(changed) - 4
    if values is not None and not _is_old_layout(key, values):
        _check_same_but_for_addresses(values, codec.decode_response(key, version, changed))


def _check_front(version: int, frame: bytes, translate: addresses.Translate, changed: bytes) -> None:
    """The front of a response that streams by, and the bytes behind it, are the rewritten frame."""
    for seen in (*range(0, len(frame), 1 + len(frame) // 16), len(frame)):
        try:
            front, behind = addresses.rewrite_metadata_front(version, frame[:seen], 0, seen, translate)
        except Incomplete:
            assert seen < len(frame), "the whole frame is there"
            continue
        assert front + frame[behind:] == changed


def _check_same_but_for_addresses(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before.items():
        if name not in _MOVED:
            assert after[name] == value, name


def _check_search(key: int, version: int, frame: bytes, values: dict[str, Any] | None, translation: int, by: int) -> None:
    """A response that streams by keeps its length, and is the one that `rewrite_frame` makes but for the padding."""
    translate = TRANSLATIONS[translation % len(TRANSLATIONS)]
    body = SearchedBody(key, version, translate, lambda now: 0)
    out = bytearray()
    size = 1 + by
    try:
        for start in range(0, len(frame), size):
            out += body.feed(frame, start, min(start + size, len(frame)))
        out += body.finish(0.0)
    except InvalidFrame:
        return
    assert len(out) == len(frame)
    try:
        whole = node_endpoints.rewrite_frame(key, version, frame, translate)
    except InvalidFrame:
        # A frame that ends with one byte of zero, or without a section, has nothing to rewrite.
        assert bytes(out) == frame, "the stream is changed, and the whole frame is refused"
        return
    if values is not None:
        streamed, at_once = codec.decode_response(key, version, bytes(out)), codec.decode_response(key, version, whole)
        _check_same_but_for_addresses(values, streamed)
        _check_same_but_for_addresses(values, at_once)
        if streamed.get("node_endpoints"):
            assert streamed["node_endpoints"] == at_once["node_endpoints"]


def seeds():
    rng = random.Random(4)
    for number, key in enumerate(KEYS):
        newest = min(APIS[key].max_version, codec.response_class(key).max_version)
        versions = range(newest + 1) if key in REWRITES or key in SEARCHED_SINCE else {0, newest}
        for version in versions:
            values = {"error_code": 0} if key == ApiKey.API_VERSIONS else {}
            yield bytes((number, version, 0, 9)) + response_frame(key, version, rng, **values)[4:1_500]
    for each in GOLDEN:
        if each.api_key in REWRITES and each.api_key in KEYS:
            yield bytes((KEYS.index(each.api_key), each.version, 1, 30)) + each.frame[4:1_500]
