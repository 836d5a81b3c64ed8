"""The checker of the transactions scenario finds each class of anomaly, and nothing in histories of a correct log."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.scenarios.transactions.checker import ALLOWED, HistoryError, Kind, check
from loadtest.scenarios.transactions.history import (
    FaultNote,
    GroupOffset,
    Log,
    Outcome,
    Poll,
    Transaction,
    Write,
    read_history,
    write_history,
)

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def transaction(process, outcome, *values, atomic=True):
    """A value such as `a1` is written to the partition `a`; `b2<a1` is a copy of a1."""
    writes = [value.partition("<") for value in values]
    return Transaction(process, outcome, tuple(Write(value[0], value, None, source) for value, _, source in writes), atomic)


def log(partition, everything, *, but=(), stable=None):
    """A log with these values at the offsets 0, 1, ...; `but` are the aborted ones."""
    records = tuple(enumerate(everything.split()))
    visible = tuple(record for record in records if record[1] not in but)
    return Log(partition, visible, records, len(records) if stable is None else stable, len(records))


def poll(process, *records, committed=True):
    """`a1@0` is the value a1 of the partition a at offset 0."""
    parts = [record.partition("@") for record in records]
    return Poll(process, committed, tuple((value[0], int(offset), value) for value, _, offset in parts))


def kinds(*entries):
    return {anomaly.kind for anomaly in check(entries)}


PAIR = transaction("p", OK, "a1", "b1")
GOOD = (PAIR, log("a", "a1"), log("b", "b1"), poll("r", "a1@0", "b1@0"))

FAULTY = {
    "acknowledged record is absent": ({Kind.LOST_WRITE}, transaction("s", OK, "a1", atomic=False), log("a", "")),
    "committed transaction is absent": ({Kind.LOST_WRITE}, PAIR, log("a", ""), log("b", "")),
    "read record is absent": ({Kind.LOST_WRITE}, transaction("p", INFO, "a1"), log("a", ""), poll("r", "a1@0")),
    "aborted record is visible": ({Kind.ABORTED_READ}, transaction("p", FAIL, "a1"), log("a", "a1")),
    "reader got an aborted record": (
        {Kind.ABORTED_READ}, transaction("p", FAIL, "a1"), log("a", "a1", but=["a1"]), poll("r", "a1@0"),
    ),
    "reader got a record of an unknown, aborted transaction": (
        {Kind.ABORTED_READ}, transaction("p", INFO, "a1"), log("a", "a1", but=["a1"]), poll("r", "a1@0"),
    ),
    "half of a committed transaction is absent": ({Kind.TORN, Kind.LOST_WRITE}, PAIR, log("a", "a1"), log("b", "")),
    "half of an unknown transaction is visible": (
        {Kind.TORN}, transaction("p", INFO, "a1", "b1"), log("a", "a1"), log("b", "b1", but=["b1"]),
    ),
    "record is stored twice": ({Kind.DUPLICATE}, transaction("s", OK, "a1", atomic=False), log("a", "a1 a1")),
    "record is stored in another partition": (
        {Kind.INCONSISTENT_OFFSET, Kind.LOST_WRITE}, transaction("s", OK, "a1", atomic=False), log("a", ""), log("b", "a1"),
    ),
    "acknowledgement names another offset": (
        {Kind.INCONSISTENT_OFFSET}, Transaction("s", OK, (Write("a", "a1", 7),), False), log("a", "a1"),
    ),
    "reader got another offset": ({Kind.INCONSISTENT_OFFSET, Kind.SKIPPED_POLL}, *GOOD, poll("r2", "a1@5")),
    "reader went back": ({Kind.NONMONOTONIC_POLL}, *GOOD, poll("r", "a1@0")),
    "reader left out a committed record": (
        {Kind.SKIPPED_POLL}, transaction("s", OK, "a1", "a2", atomic=False), log("a", "a1 a2"), poll("r", "a2@1"),
    ),
    "records changed places": (
        {Kind.REORDERED}, transaction("s", OK, "a1", "a2", atomic=False), log("a", "a2 a1"),
    ),
    "log has a record that nobody wrote": ({Kind.UNWRITTEN}, log("a", "a1")),
    "reader got a record that nobody wrote": ({Kind.UNWRITTEN}, *GOOD, poll("r", "a9@1")),
    "transaction never ends": ({Kind.HANGING}, transaction("p", INFO, "a1"), log("a", "a1", but=["a1"], stable=0)),
    "two transactions in two orders": (
        {Kind.WRITE_CYCLE}, PAIR, transaction("q", OK, "a2", "b2"), log("a", "a1 a2"), log("b", "b2 b1"),
    ),
    "reader of a record wrote before its writer": (
        {Kind.CIRCULAR_FLOW}, transaction("p", OK, "a1", "b2"), transaction("q", OK, "b1<a1"),
        log("a", "a1"), log("b", "b1 b2"), GroupOffset("a", 1),
    ),
    "two copies of a record": (
        {Kind.DUPLICATE}, transaction("p", OK, "a1"), transaction("c", OK, "b1<a1", "b2<a1"), log("a", "a1"), log("b", "b1 b2"),
        GroupOffset("a", 1),
    ),
    "offset is committed without a copy": (
        {Kind.TORN}, transaction("p", OK, "a1"), transaction("c", FAIL, "b1<a1"),
        log("a", "a1"), log("b", ""), GroupOffset("a", 1),
    ),
    "copy is committed without its offset": (
        {Kind.TORN}, transaction("p", OK, "a1"), transaction("c", OK, "b1<a1"),
        log("a", "a1"), log("b", "b1"), GroupOffset("a", 0),
    ),
    "copy of an aborted record": (
        {Kind.ABORTED_READ}, transaction("p", FAIL, "a1"), transaction("c", OK, "b1<a1"), log("a", "a1", but=["a1"]),
        log("b", "b1"), GroupOffset("a", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("expected", "entries"), [(found, rest) for found, *rest in FAULTY.values()], ids=FAULTY)
def test_checker_finds_anomaly(expected, entries):
    assert kinds(*entries) == expected


@pytest.mark.parametrize("entries", [
    GOOD,
    (transaction("p", INFO, "a1", "b1"), log("a", "a1", but=["a1"]), log("b", "b1", but=["b1"])),
    (transaction("p", INFO, "a1", "b1"), log("a", "a1"), log("b", "b1")),
    (transaction("p", FAIL, "a1"), log("a", "a1", but=["a1"]), poll("r", "a1@0", committed=False)),
    (transaction("p", FAIL, "a1"), transaction("p", OK, "a2"), log("a", "a1 a2", but=["a1"]), poll("r", "a2@1")),
    (PAIR, transaction("q", OK, "a2", "b2"), log("a", "a1 a2"), log("b", "b1 b2")),
    (transaction("p", OK, "a1"), transaction("c", OK, "b1<a1"), log("a", "a1"), log("b", "b1"), GroupOffset("a", 1)),
])  # fmt: skip
def test_checker_accepts_correct_history(entries):
    assert kinds(*entries) == set()


def test_checker_finds_every_kind():
    assert set().union(*(found for found, *_ in FAULTY.values())) == set(Kind)


def test_checker_refuses_repeated_value():
    with pytest.raises(HistoryError, match="two writes have the value a1"):
        check([transaction("p", OK, "a1"), transaction("q", OK, "a1"), log("a", "a1")])


def test_checker_refuses_history_without_final_log():
    with pytest.raises(HistoryError, match="no log of b"):
        check([PAIR, log("a", "a1")])


def test_history_file_keeps_entries(tmp_path):
    entries = [*GOOD, GroupOffset("a", 1), FaultNote("kill broker", "broker 1", 5.0, 9.5)]
    write_history(tmp_path / "history.jsonl", entries)
    assert list(read_history(tmp_path / "history.jsonl")) == entries


@st.composite
def histories(draw):
    """Histories of a correct Kafka: transactions of three processes are interleaved in the logs of three partitions."""
    partitions_of_writes = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
    plan = st.tuples(st.sampled_from("pqr"), partitions_of_writes, st.booleans(), st.booleans(), st.booleans())
    plans = draw(st.lists(plan, max_size=8))
    logs = {name: [] for name in "abc"}
    aborted, entries, waiting = set(), [], {process: [] for process in "pqr"}
    for number, (process, partitions, commits, known, atomic) in enumerate(plans):
        values = [(name, f"{process}{number}.{place}") for place, name in enumerate(partitions if atomic else partitions[:1])]
        waiting[process] += values
        if not commits and atomic:
            aborted.update(value for _, value in values)
        certain = OK if commits or not atomic else FAIL
        writes = tuple(Write(name, value) for name, value in values)
        entries.append(Transaction(process, certain if known else INFO, writes, atomic))
    while any(waiting.values()):
        name, value = waiting[draw(st.sampled_from([process for process in waiting if waiting[process]]))].pop(0)
        logs[name].append(value)
    sources = [(name, offset, value) for name in "abc" for offset, value in enumerate(logs[name]) if value not in aborted]
    ends = {name: draw(st.integers(0, len(logs[name]))) for name in "abc"}
    copied = [(value, f"copy-{value}") for name, offset, value in sources if offset < ends[name]]
    entries += [Transaction("copier", OK, (Write("z", copy, place, value),)) for place, (value, copy) in enumerate(copied)]
    entries += [GroupOffset(name, end) for name, end in ends.items()]
    logs["z"] = [copy for _, copy in copied]
    for name, values in logs.items():
        records = tuple(enumerate(values))
        visible = tuple(record for record in records if record[1] not in aborted)
        entries.append(Log(name, visible, records, len(records), len(records)))
        for committed in (True, False):
            rest = [(name, offset, value) for offset, value in (visible if committed else records)]
            rest = rest[: draw(st.integers(0, len(rest)))]
            while rest:
                size = draw(st.integers(1, len(rest)))
                entries.append(Poll("reader", committed, tuple(rest[:size])))
                rest = rest[size:]
    return entries


@settings(max_examples=40)
@given(histories())
def test_correct_log_shows_no_forbidden_anomaly(entries):
    """Write cycles are left out: Kafka interleaves transactions."""
    assert kinds(*entries) <= ALLOWED


@settings(max_examples=40)
@given(histories(), st.data())
def test_lost_record_is_found(entries, data):
    """A record that the client knows to be committed disappears from the final log."""
    sure = [
        (write.partition, write.value)
        for each in entries
        if isinstance(each, Transaction) and each.outcome is OK
        for write in each.writes
    ]
    if sure:
        name, value = data.draw(st.sampled_from(sure))
        entries = [
            replace(each, committed=tuple(record for record in each.committed if record[1] != value))
            if isinstance(each, Log) and each.partition == name else each
            for each in entries
        ]  # fmt: skip
        assert Kind.LOST_WRITE in kinds(*entries)
