"""The message of a member: round trips and refusals."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.client import BadRecordError
from gateway.features.sharing.config import MAX_INTERVAL_MS
from gateway.features.sharing.use_message import (
    MAX_COUNTS,
    MAX_ENTITIES,
    MAX_MESSAGE_BYTES,
    MAX_TURNS,
    Balance,
    EntityUse,
    UseMessage,
    encode,
    parse,
    parse_member,
)
from gateway.quotas.entity import Tags
from gateway.quotas.kinds import KINDS
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS

names = st.none() | st.text(max_size=20)
brokers = st.none() | st.integers(-1, 2**31 - 1)
tags = st.builds(Tags, names, names, ip=names, broker=brokers).filter(
    lambda tags: (tags.user, tags.client_id, tags.ip) != (None, None, None)
)
counts = st.integers(0, 2**63 - 1)
uses = st.builds(EntityUse, st.sampled_from(list(KINDS)), tags, counts, counts)


connections = st.dictionaries(st.tuples(st.sampled_from(["ip", "user"]), st.text(max_size=20)), counts, max_size=5)


turns = st.integers(1, MAX_TURNS)
rates = st.floats(0.001, 1e12)
balances = st.dictionaries(
    st.tuples(st.sampled_from(list(KINDS)), tags),
    st.builds(Balance, rates, st.floats(-MAX_DEBT_SECONDS, 1e9), counts),
    max_size=5,
)
messages = st.builds(
    UseMessage,
    counts,
    st.lists(uses, max_size=5).map(tuple),
    connections=connections,
    turns=turns,
    balances=balances,
    interval=st.integers(0, MAX_INTERVAL_MS).map(lambda milliseconds: milliseconds / 1000.0),
    enforced=st.booleans(),
)


@given(messages)
def test_message_survives_round_trip(message: UseMessage) -> None:
    assert parse(encode(message)) == message


@given(st.binary(max_size=200))
def test_garbage_raises_only_bad_message(value: bytes) -> None:
    with pytest.raises(BadRecordError):
        parse(value)


def text(**fields: object) -> bytes:
    return json.dumps({"Version": 1, "Sequence": 1, "Entities": [], **fields}).encode()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b" " * (MAX_MESSAGE_BYTES + 1), "too_large"),
        (b"{", "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b"[]", "bad_type"),
        (text(Version=2), "unknown_version"),
        (text(Version=True), "unknown_version"),
        (text(Sequence=-1), "bad_number"),
        (text(Sequence=1.5), "bad_number"),
        (text(Sequence=True), "bad_number"),
        (text(Entities={}), "bad_type"),
        (text(Entities=[0] * (MAX_ENTITIES + 1)), "too_large"),
        (text(Interval=-1), "bad_number"),
        (text(Connections={}), "bad_type"),
        (text(Connections=[0] * (MAX_COUNTS + 1)), "too_large"),
    ],
)
def test_unusable_message_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        parse(value)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([0], "bad_type"),
        (["produce", {"user": "a"}, 1], "bad_type"),
        ([1, {"user": "a"}, 1, 1], "bad_type"),
        (["produce", {}, 1, 1], "bad_type"),
        (["produce", {"user": 1}, 1, 1], "bad_type"),
        (["produce", {"user": "a" * 40_000}, 1, 1], "bad_type"),
        (["produce", {"group": "a" * 256}, 1, 1], "bad_type"),
        (["topic", {"name": "a" * 256}, 1, 1], "bad_type"),
        (["k" * 256, {"user": "a"}, 1, 1], "bad_type"),
        (["produce", {"user": "half a pair \ud800"}, 1, 1], "bad_type"),
        (["produce", {"user": "a", "name": "b"}, 1, 1], "bad_type"),
        (["produce", {"user": "a", "broker": 1}, 1, 1], "bad_type"),
        (["produce", {"user": "a", "broker": "-2"}, 1, 1], "bad_type"),
        (["produce", {"user": "a", "broker": "1 "}, 1, 1], "bad_type"),
        (["produce", {"shoe": "a"}, 1, 1], "unknown_part"),
        (["produce", {"user": "a"}, -1, 1], "bad_number"),
        (["produce", {"user": "a"}, 1, 2**63], "bad_number"),
    ],
)
def test_unusable_row_is_skipped_alone(row: list[object], reason: str) -> None:
    good = ["produce", {"user": "etl"}, 7, 3]
    message = parse(text(Entities=[row, good]))
    assert message == UseMessage(1, (EntityUse("produce", Tags("etl", None), 7, 3),), (reason,))


def test_message_of_an_older_weir_has_no_interval() -> None:
    message = parse(text())
    assert (message.interval, message.enforced) == (0.0, True)


def test_interval_of_a_message_is_bounded() -> None:
    assert parse(text(Interval=2**62)).interval == MAX_INTERVAL_MS / 1000.0


def test_named_entities_survive_round_trip() -> None:
    group = EntityUse("produce", Tags(None, None, group="jobs"), 9, 9)
    message = UseMessage(3, (EntityUse("topic", "payments", 7, 0), EntityUse("gateway", "", 5, 5), group))
    assert parse(encode(message)) == message


@pytest.mark.parametrize("key", [None, b"", b"2f6c", b"g" * 16, b"A" * 16, b"0" * 17, "é".encode() * 8])
def test_key_that_names_no_member_is_refused(key: bytes | None) -> None:
    with pytest.raises(BadRecordError) as caught:
        parse_member(key)
    assert caught.value.reason == "bad_key"


@pytest.mark.parametrize("row", [0, "abc", ["user", "alice"], ["user", "alice", -1], ["user", 7, 1], ["user", "a" * 40_000, 1]])
def test_unusable_count_of_connections_is_skipped(row: object) -> None:
    message = parse(text(Connections=[row, ["user", "bob", 3]]))
    assert message.connections == {("user", "bob"): 3}
    assert message.skipped == ("bad_type",)


@pytest.mark.parametrize(
    "row",
    [
        "x",
        ["produce", {"user": "a"}, 1.0, 2.0],
        ["produce", {"user": "a"}, 0, 2.0, 3],
        ["produce", {"user": "a"}, float("nan"), 2.0, 3],
        ["produce", {"user": "a"}, 1.0, float("inf"), 3],
        ["produce", {"user": "a"}, 1.0, -MAX_DEBT_SECONDS - 1, 3],
        ["produce", {"user": "a"}, 1.0, 2.0, -3],
        ["produce", {}, 1.0, 2.0, 3],
    ],
)
def test_unusable_balance_is_skipped_alone(row: object) -> None:
    good = ["produce", {"user": "b"}, 1.0, 2.0, 3]
    message = parse(text(Balances=[row, good]))
    assert message.balances == {("produce", Tags("b", None)): Balance(1.0, 2.0, 3)}
    assert len(message.skipped) == 1
