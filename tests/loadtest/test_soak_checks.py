"""Each check of the soak passes on clean figures, and fails on the defect that it is for."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from loadtest.scenarios.soak.checks import (
    charge_problems,
    compare_with_logs,
    counted_whole,
    descriptor_problems,
    memory_problems,
    memory_slopes,
    read_log,
)
from loadtest.scenarios.soak.evaluation import last_values
from loadtest.scenarios.soak.journal import Fate, Journal, Sent, read_journal
from loadtest.scenarios.soak.observation import Observed, read_counters, series
from loadtest.scenarios.soak.process_samples import (
    CLIENT,
    DEAD,
    LEDGER,
    LISTENING,
    OTHER,
    UPSTREAM,
    ProcessSample,
    TcpSocket,
    kind_of,
)
from loadtest.scenarios.soak.schedule import KILL_WORKER, REPEATED, schedule_of
from loadtest.scenarios.soak.setting import WORKERS
from loadtest.scenarios.soak.visitor import MANNERS, manner_of

MIB = 1 << 20
HOUR = 3600.0
WARM_UP = 1200.0


def samples(growth, seconds=2 * HOUR, pid=1):
    """A process of 100 MiB with noise, that grows by `growth` percent of that an hour after a steep beginning."""
    found = []
    for number in range(int(seconds / 10)):
        at = number * 10.0
        warm = min(at / WARM_UP, 1.0) * 50 - 50
        noise = (number * 7919 % 13) / 10
        pss = int((100 + warm + noise + growth * at / HOUR) * MIB)
        found.append(Observed(at, [ProcessSample("worker 0", pid, pss, 0.0, {})], {}))
    return found


def test_flat_memory_has_no_problem():
    (slope,) = memory_slopes(samples(0.0), WARM_UP)
    assert abs(slope.percent_per_hour) < 0.2
    assert slope.low < slope.percent_per_hour < slope.high
    assert slope.minutes == pytest.approx(99.8, abs=0.1)
    assert memory_problems([slope]) == []


def test_leak_of_three_percent_an_hour_is_a_problem():
    slopes = memory_slopes(samples(3.0), WARM_UP)
    assert slopes[0].percent_per_hour == pytest.approx(2.9, abs=0.2)
    assert memory_problems(slopes) == [f"worker 0 (1) grows by {slopes[0].percent_per_hour:.2f} % an hour"]


def test_anonymous_memory_counts_in_place_of_pss():
    flat = [replace(seen, processes=[replace(seen.processes[0], anonymous=90 * MIB)]) for seen in samples(3.0)]
    (slope,) = memory_slopes(flat, WARM_UP)
    assert (slope.mean_mib, slope.percent_per_hour) == (90.0, 0.0)


def test_replaced_worker_begins_anew():
    later = [replace(one, at=one.at + 2 * HOUR) for one in samples(0.0, HOUR, pid=2)]
    assert [(slope.pid, slope.minutes > 20) for slope in memory_slopes(samples(0.0) + later, WARM_UP)] == [(1, True), (2, True)]
    assert memory_slopes(samples(0.0, seconds=2000.0), WARM_UP) == []


BEFORE = {"worker 0": {OTHER: 21, LISTENING: 8, UPSTREAM: 14}}


@pytest.mark.parametrize(
    ("after", "problems"),
    [
        ({OTHER: 21, LISTENING: 8, UPSTREAM: 16}, 0),
        ({OTHER: 20, LEDGER: 2, LISTENING: 8}, 0),
        ({OTHER: 22, LISTENING: 8, UPSTREAM: 14}, 1),
        ({OTHER: 21, LISTENING: 8, UPSTREAM: 14, DEAD: 1}, 1),
        ({OTHER: 21, LISTENING: 8, UPSTREAM: 14, CLIENT: 1}, 1),
        ({OTHER: 21, LISTENING: 8, UPSTREAM: 21}, 1),
    ],
)
def test_descriptors_left_after_the_run_are_problems(after, problems):
    assert len(descriptor_problems(BEFORE, {"worker 0": after}, own_upstream=6)) == problems


def test_descriptors_have_a_kind_by_their_ports():
    sockets = {
        "1": TcpSocket(9000, 40_000, "01"),
        "2": TcpSocket(40_001, 9092, "01"),
        "3": TcpSocket(9000, 0, "0A"),
        "4": TcpSocket(9644, 40_002, "01"),
    }

    def kind(target):
        return kind_of(target, sockets, {"5"}, clients={9000}, brokers={9092})

    kinds = [kind(f"socket:[{inode}]") for inode in range(1, 7)]
    assert kinds == [CLIENT, UPSTREAM, LISTENING, OTHER, OTHER, DEAD]
    assert kind("/ledger/_weir-1.jsonl.gz.part") == LEDGER
    assert [kind(target) for target in ("pipe:[1]", "anon_inode:[eventpoll]", "/tmp/file")] == [OTHER] * 3


def sent(number, fate=Fate.ACKNOWLEDGED, topic="calm-00"):
    return Sent(number, topic, fate, batch_bytes=100, frame_bytes=154, at=0.0)


JOURNAL = [
    sent(1),
    sent(2),
    sent(3, Fate.UNANSWERED),
    sent(4, Fate.REFUSED),
    sent(5, Fate.CUT),
    sent(6, Fate.UNCLEAR),
    sent(7, Fate.UNANSWERED),
]


def compared(journal=JOURNAL, stored=(1, 2, 3), counted=200, log_files=None, topic="calm-00"):
    numbers = Counter(stored)
    files = 100 * numbers.total() if log_files is None else log_files
    return compare_with_logs(journal, {topic: numbers}, {topic: counted}, {topic: [files, files]})


def test_unanswered_batches_may_be_in_the_log_or_not():
    found = compared()
    assert found.problems == []
    assert found.fates == {"acknowledged": 2, "cut": 1, "refused": 1, "unanswered": 2, "unclear": 1}
    (topic,) = found.topics
    assert (topic.acknowledged, topic.counted, topic.stored, topic.stored_unacknowledged) == (200, 200, 300, 100)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"stored": (1, 3)}, "1 batches are lost, such as 0x2"),
        ({"stored": (1, 2, 2)}, "1 batches are stored again, such as 0x2"),
        ({"stored": (1, 2, 4)}, "1 batches are refused or cut, but stored, such as 0x4"),
        ({"stored": (1, 2, 5)}, "1 batches are refused or cut, but stored, such as 0x5"),
        ({"stored": (1, 2, 9)}, "1 batches are unknown, such as 0x9"),
        ({"counted": 100}, "the gateway counted 100 bytes, not between 200 acknowledged and 300 stored"),
        ({"counted": 400}, "the gateway counted 400 bytes, not between 200 acknowledged and 300 stored"),
        ({"counted": 300}, "the gateway counted 300 bytes, acknowledged 200"),
        ({"log_files": 301}, "the log files have 301 bytes, the batches in them 300"),
    ],
)
def test_difference_between_counters_and_logs_is_a_problem(change, problem):
    assert f"calm-00: {problem}" in compared(**change).problems


def test_counters_of_vanishing_clients_may_be_higher():
    journal = [replace(one, topic="rough-00") for one in JOURNAL]
    assert compared(journal, counted=300, topic="rough-00").problems == []


def test_counters_amid_a_kill_may_lack_bytes_and_never_exceed():
    journal = [replace(one, topic="calm-01") for one in JOURNAL]
    assert compared(journal, counted=0, topic="calm-01").problems == []
    assert len(compared(journal, counted=301, topic="calm-01").problems) == 1
    assert [counted_whole(topic) for topic in ("calm-02", "rough-03", "capped")] == [True, False, False]


@pytest.mark.parametrize(("charged", "problems"), [(749, 1), (750, 0), (1050, 0), (1051, 1)])
def test_charges_lie_between_answered_and_sent_requests(charged, problems):
    counters = {series("weir_quota_bytes_total", kind="produce", client_id="calm-00"): charged}
    assert len(charge_problems(JOURNAL, counters)) == problems


def test_unexpected_warnings_and_tracebacks_are_kept():
    lines = [
        {"level": "info", "msg": "2 workers"},
        {"level": "warning", "msg": "broker 2 can't be reached: Connection refused"},
        {"level": "warning", "msg": "broker 1 can't be reached: Connection refused"},
        {"level": "error", "msg": "connection closed, for a bug of Weir's", "error": "Traceback (most recent call last)"},
    ]
    logged = read_log([*map(json.dumps, lines), "Segmentation fault"])
    assert logged.counts["warning: can't be reached"] == 2
    assert logged.tracebacks == 1
    assert [line[:20] for line in logged.unexpected] == ['{"level": "error", "', "Segmentation fault"]


def test_traceback_in_an_expected_message_is_unexpected():
    line = {"level": "warning", "msg": "topic t can't be read", "error": "Traceback (most recent call last)"}
    assert len(read_log([json.dumps(line)]).unexpected) == 1


def test_journal_is_read_as_written_without_a_torn_end(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for one in (*JOURNAL, sent(8, topic="rough-00")):
            journal.note(one)
    assert [*read_journal(path)] == [*JOURNAL, sent(8, topic="rough-00")]
    path.write_bytes(path.read_bytes()[:-1])
    assert [*read_journal(path)] == JOURNAL


def test_counters_keep_the_last_value_of_a_row_that_is_gone():
    page = '# TYPE weir_topic_bytes_total counter\nweir_topic_bytes_total{topic="calm-00"} 7.0\n# EOF\n'
    seen = [Observed(0.0, [], read_counters(page)), Observed(1.0, [], {})]
    assert last_values(seen) == {series("weir_topic_bytes_total", topic="calm-00"): 7.0}


def test_schedule_repeats_and_kills_each_worker_early():
    events = schedule_of(1, 7200.0, 120.0)
    assert events == schedule_of(1, 7200.0, 120.0) != schedule_of(2, 7200.0, 120.0)
    assert {event.kind for event in events} == {*REPEATED, KILL_WORKER}
    assert all(former.at < latter.at < 7200.0 for former, latter in pairwise(events))
    kills = [event for event in events if event.kind == KILL_WORKER]
    assert [event.target for event in kills] == list(range(WORKERS))
    assert kills[-1].at < 0.15 * 7200.0


def test_every_manner_has_its_part_of_the_clients():
    counts = Counter(manner_of(place, 2000).name for place in range(2000))
    assert counts == {manner.name: round(2000 * manner.part) for manner in MANNERS}


def test_counter_whose_part_has_expired_keeps_its_highest_value():
    seen = [Observed(float(at), [], {"a_total{}": value, "b{}": value}) for at, value in enumerate((5.0, 8.0, 3.0))]
    assert last_values(seen) == {"a_total{}": 8.0, "b{}": 3.0}
