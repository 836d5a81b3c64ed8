"""The usage file: written lines are read again, and unreadable lines are skipped or refused with a message."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.features.connection_quotas.rules import ConnectionQuotas
from gateway.features.recent_use import usage_file
from gateway.features.recent_use.usage_file import (
    BadUsageFileError,
    Usage,
    entity_line,
    listener_line,
    peer_lines,
    read_usage,
    topic_line,
    write_usage,
)
from gateway.features.topic_quotas.rules import TopicQuotas
from gateway.quotas.entity import Tags
from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import PastUse, Window
from gateway.quotas.recent_use import BucketUse, Moment, PeerTotals, RecentUse, TopicRateUse
from gateway.quotas.settings import Metering

AT = Moment("a boot", 5_021.4, 1_795_244_400.2)
USE = RecentUse(1e6, Metering("window", Window(5, 2.0)), (PastUse(3.5, 2.0, 100.0), PastUse(0.5, 0.0, 0.0)))
USAGE = Usage(
    AT,
    (BucketUse("produce", Tags("alice", None), USE), BucketUse("connection", Tags(None, None, ip="10.0.0.1"), USE)),
    {None: USE, "clients": USE},
    (PeerTotals("00f1", 7, {("produce", Tags("alice", None)): 512, ("topic", "payments"): 9}),),
    (TopicRateUse("payments", "window", Window(5, 2.0), USE.used), TopicRateUse(None, "one_minute", Window(), (), USE.used)),
)

numbers = st.floats(-1e9, 1e18)
names = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
uses = st.builds(
    RecentUse,
    st.floats(1e-9, 1e18),
    st.builds(Metering, st.sampled_from(["token_bucket", "window"]), st.builds(Window, st.integers(1, 99), st.floats(0.1, 99))),
    st.lists(st.builds(PastUse, numbers, numbers, numbers), min_size=1, max_size=3).map(tuple),
)
usages = st.builds(
    Usage,
    st.builds(Moment, st.text("abc-", max_size=5), numbers, numbers),
    st.lists(
        st.builds(BucketUse, st.text(max_size=5), st.builds(Tags, names, names, st.just(False), names), uses), max_size=3
    ).map(tuple),
    st.dictionaries(names, uses, max_size=3),
    st.lists(
        st.builds(
            PeerTotals,
            st.text("0f", max_size=3),
            st.integers(0, 9),
            st.dictionaries(
                st.tuples(st.text(max_size=3), st.builds(Tags, names, names, st.just(False), names) | st.text(max_size=3)),
                st.integers(0, 2**63 - 1),
                max_size=3,
            ),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(
            TopicRateUse,
            names,
            st.sampled_from(["one_minute", "window"]),
            st.builds(Window, st.integers(1, 99), st.floats(0.1, 99)),
            st.lists(st.builds(PastUse, numbers, numbers, numbers), max_size=3).map(tuple),
            st.lists(st.builds(PastUse, numbers, numbers, numbers), max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)


def write(path, usage):
    lines = [entity_line(entity) for entity in usage.entities]
    lines += [listener_line(*each) for each in usage.listeners.items()]
    lines += [line for peer in usage.peers for line in peer_lines(peer)]
    write_usage(path, usage.at, lines + [topic_line(topic) for topic in usage.topics])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weir.state.usage.jsonl"


@given(usage=usages)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_written_usage_is_read(path, usage):
    write(path, usage)
    assert read_usage(path) == usage


@pytest.mark.parametrize(
    "tags", [Tags(None, None, group="jobs"), Tags("alice", None, broker=3), Tags("alice", None, broker=-1)]
)
def test_use_of_a_group_or_broker_is_kept(path, tags):
    usage = Usage(USAGE.at, (BucketUse("produce", tags, USE),), peers=(PeerTotals("00f1", 7, {("produce", tags): 512}),))
    write(path, usage)
    assert read_usage(path) == usage


def test_file_matches_its_documentation(path):
    write(path, USAGE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"version": 1, "boot": "a boot", "monotonic": 5_021.4, "wall": 1_795_244_400.2, "rows": 7}
    use = {"limit": 1e6, "metering": ["window", 5, 2.0], "spent": [[3.5, 2.0, 100.0], [0.5, 0.0, 0.0]]}
    assert lines[1:] == [
        {"kind": "produce", "user": "alice", **use},
        {"kind": "connection", "ip": "10.0.0.1", **use},
        {"listener": None, **use},
        {"listener": "clients", **use},
        {
            "member": "00f1",
            "sequence": 7,
            "told": [{"kind": "produce", "user": "alice", "total": 512}, {"kind": "topic", "name": "payments", "total": 9}],
        },
        {"topic": "payments", "metering": ["window", 5, 2.0], "spent": use["spent"], "elsewhere": []},
        {"topic": None, "metering": ["one_minute", 11, 1.0], "spent": [], "elsewhere": use["spent"]},
    ]
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_keeps_earlier_file(path):
    write(path, USAGE)
    path.with_name(f"{path.name}.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write(path, Usage(AT))
    assert read_usage(path) == USAGE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ('{"version": 1', "is damaged"),
        (b"\xff\xfe", "is damaged"),
        ("[]", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("7", "is damaged"),
        ('{"boot": ""}', "is damaged"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 1, "boot": "", "monotonic": 1, "wall": "yesterday", "rows": 0}', "is damaged"),
        ('{"version": 1, "boot": "", "monotonic": 1, "wall": Infinity, "rows": 0}', "is damaged"),
        ('{"version": 2, "what": "ever"}', "has version 2, this Weir reads version 1"),
    ],
)
def test_damaged_file_is_refused(path, content, message):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadUsageFileError, match=message):
        read_usage(path)


DAMAGED = {
    "cut": lambda line: line[:-5],
    "not UTF-8": lambda line: line[:-3] + b"\xff" + line[-3:],
    "half of a character, as a client may call himself": lambda line: line.replace(b"alice", b"\\ud800"),
    "a limit of nothing": lambda line: line.replace(b"1000000.0", b"0"),
    "no number": lambda line: line.replace(b"100.0", b"NaN"),
    "an unknown key": lambda line: line.replace(b'"kind"', b'"kinds"'),
    "nothing spent": lambda line: line[: line.index(b'"spent"')] + b'"spent": []}',
    "no samples": lambda line: line.replace(b'"window", 5', b'"window", 0'),
    "too many samples for a float": lambda line: line.replace(b'"window", 5', b'"window", 1' + b"0" * 310),
    "more samples than a config may have": lambda line: line.replace(b'"window", 5', b'"window", 10001'),
    "a sample of more than a day": lambda line: line.replace(b"5, 2.0]", b"5, 86400.1]"),
    "a limit that becomes infinite": lambda line: line.replace(b"1000000.0", b"1e308"),
    "an amount that becomes infinite": lambda line: line.replace(b"100.0", b"1e308"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_line_is_skipped(path, damage):
    write(path, USAGE)
    lines = path.read_bytes().splitlines()
    damaged = DAMAGED[damage](lines[1])
    assert damaged != lines[1]
    path.write_bytes(b"\n".join([lines[0], damaged, *lines[2:]]))
    assert read_usage(path) == Usage(AT, USAGE.entities[1:], USAGE.listeners, USAGE.peers, USAGE.topics, damaged=1)


def test_missing_lines_are_counted(path):
    write(path, USAGE)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    assert read_usage(path) == Usage(AT, USAGE.entities, USAGE.listeners, USAGE.peers, damaged=2)


def test_member_with_many_entities_takes_several_lines(path):
    peer = PeerTotals("00f1", 7, {("topic", str(number)): number for number in range(120)})
    write(path, Usage(AT, peers=(peer,)))
    assert [len(each.totals) for each in read_usage(path).peers] == [50, 50, 20]


NEWER = {
    ("produce", Tags(None, None, group="jobs")): 1,
    ("produce", Tags("alice", None, broker=3)): 2,
    ("request_rate.Metadata", Tags("alice", None)): 3,
    ("broker_topic", "3/payments"): 4,
}
"""Totals that Weir 0.2 can't use: it refuses a line with an unknown field, and fails at an unknown kind."""


def test_totals_that_an_older_weir_refuses_have_own_lines(path):
    older = {("produce", Tags("alice", None)): 512, ("topic", "payments"): 9}
    first, last = older.items()
    write(path, Usage(AT, peers=(PeerTotals("00f1", 7, dict([first, *NEWER.items(), last])),)))
    assert [dict(each.totals) for each in read_usage(path).peers] == [older, NEWER]
    _, plain, marked = (json.loads(line) for line in path.read_text().splitlines())
    assert all(each.keys().isdisjoint(("group", "broker")) for each in plain["told"])
    assert all("group" in each or "broker" in each for each in marked["told"])


def test_kinds_of_weir_0_2_are_still_kinds():
    shared = {*KINDS, *ConnectionQuotas.kinds, *TopicQuotas.kinds}
    assert shared >= usage_file._KINDS_OF_0_2


def test_lines_over_the_limit_are_cut(monkeypatch):
    monkeypatch.setattr(usage_file, "MAX_BYTES", 25)
    lines = ["0123456789\n", "0123456789\n", "0123456789\n"]
    assert usage_file.drop_excess(lines) == 1
    assert len(lines) == 2
    assert usage_file.drop_excess(lines) == 0
