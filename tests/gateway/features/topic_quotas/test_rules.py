"""Topic quotas: rejected topics, the share of topics without a threshold, and counters."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.topic_quotas.rules import MAX_NAMELESS, TopicQuotas, TopicSettings
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.steps import at_once
from tests.gateway.features.topic_quotas.listing import list_topics

START = 1_000.0
MB = 1_000_000
FIVE = {name: bytes([number]) * 16 for number, name in enumerate(("payments", "orders", "clicks", "logs", "audit"), 1)}
WINDOW = {"meter": "window", "window": Window(2, 1.0)}


def quotas(total=10 * MB, explicit=None, topics=FIVE, **settings):
    made = TopicQuotas(TopicSettings(total, explicit or {}, **WINDOW), START, own=OwnTopics(), **settings)
    list_topics(made, topics)
    return made


def append(made, name, size, now=START, **rest):
    return made.appended(name.encode(), size, now, by_id=False, **rest)


def rejects(made, name, now=START):
    return made.rejects(made.find(name.encode(), by_id=False), now)


@pytest.mark.parametrize(
    ("explicit", "topics", "default", "defaulted"),
    [
        ({}, FIVE, 2 * MB, 5),
        ({"payments": 5 * MB}, FIVE, 1.25 * MB, 4),
        ({"payments": 5 * MB, "orders": 5 * MB}, FIVE, 0, 3),
        ({"payments": 5 * MB}, {"payments": bytes(16)}, 5 * MB, 0),
        ({"nobody": 4 * MB}, FIVE, 1.2 * MB, 5),  # the threshold of a topic that does not exist yet stays reserved
        ({}, {}, 10 * MB, 0),
    ],
)
def test_topics_without_threshold_share_the_rest(explicit, topics, default, defaulted):
    made = quotas(explicit=explicit, topics=topics)
    assert made.default_threshold == pytest.approx(default)
    assert made.totals(START).defaulted == defaulted
    assert made.threshold("payments") == pytest.approx(explicit.get("payments", default))


def test_default_share_follows_topics_and_thresholds():
    made = quotas(explicit={"payments": 5 * MB})
    append(made, "new", 1)
    assert made.default_threshold == 1 * MB  # seen before the cluster lookup
    append(made, "new", 1)
    assert made.default_threshold == 1 * MB
    list_topics(made, {**FIVE, "new": bytes(16)})
    assert made.default_threshold == 1 * MB
    list_topics(made, {"payments": bytes(16), "orders": bytes(16)})
    assert made.default_threshold == 5 * MB
    made.apply(TopicSettings(10 * MB, {"orders": 4 * MB}, **WINDOW), START)
    assert made.default_threshold == 6 * MB


def test_unlisted_topic_keeps_its_meters_while_it_is_used():
    """It is newer than the list, or Weir's user may not describe it."""
    made = quotas(topics={})
    use = append(made, "new", 7)
    list_topics(made, {})
    assert made.totals(START).defaulted == 1
    for changed in ("appended_bytes", "throttled_total"):
        setattr(use, changed, getattr(use, changed) + 3)
        list_topics(made, {})
        assert made.find(b"new", by_id=False) is use
        assert made.totals(START).defaulted == 0
    list_topics(made, {})
    assert made.find(b"new", by_id=False) is None


@pytest.mark.parametrize(
    ("used", "rejected"),
    [
        # bytes in the window of a second, total threshold 10 MB/s, payments 5, the others 1.25
        ({"payments": 5 * MB, "orders": 1 * MB}, set()),
        ({"payments": 9 * MB, "orders": 1 * MB}, set()),  # over its own threshold, but a total of 10 is not over
        ({"payments": 9 * MB, "orders": 1 * MB + 1}, {"payments"}),
        ({"payments": 5 * MB, "orders": 6 * MB}, {"orders"}),
        ({"payments": 6 * MB, "orders": 6 * MB, "logs": 1}, {"payments", "orders"}),
        ({"orders": 1_250_000, "payments": 9 * MB}, {"payments"}),
    ],
)
def test_topic_is_rejected_iff_it_and_total_are_over(used, rejected):
    made = quotas(explicit={"payments": 5 * MB})
    for name, size in used.items():
        append(made, name, size)
    assert {name for name in FIVE if rejects(made, name)} == rejected
    assert {row.topic for row in at_once(made.rows(START)) if row.rejected} == rejected


def test_topic_without_appends_is_never_rejected():
    made = quotas(total=1, topics={})
    append(made, "hot", 10 * MB)
    assert made.over(START)
    assert rejects(made, "hot")
    assert not rejects(made, "cold")
    assert not made.rejects(made.find(bytes(16), by_id=True), START)


@pytest.mark.parametrize("meter", ["one_minute", "window"])
def test_meter_can_be_chosen_and_changed(meter):
    made = TopicQuotas(TopicSettings(1_000, meter=meter), START, own=OwnTopics())
    for second in range(11):
        append(made, "hot", 5_000, START + second)
    assert made.rate(START + 11) == pytest.approx(5_000, rel=0.3)
    assert rejects(made, "hot", START + 11)
    made.apply(TopicSettings(9_000, meter=meter), START + 11)
    assert not rejects(made, "hot", START + 11)
    other = "window" if meter == "one_minute" else "one_minute"
    made.apply(TopicSettings(1_000, meter=other), START + 11)
    assert made.rate(START + 11) == 0  # a new algorithm starts at 0
    assert made.find(b"hot", by_id=False).appended_bytes == 55_000


def test_rejected_bytes_move_no_rate():
    made = quotas()
    use = append(made, "orders", 100)
    made.throttled(use, 7)
    made.throttled(use, 8)
    made.refused(b"orders", 9, "MESSAGE_TOO_LARGE", START, by_id=False)
    made.refused(b"orders", 1, "MESSAGE_TOO_LARGE", START, by_id=False)
    made.refused(b"nobody", 5, "UNKNOWN_TOPIC_OR_PARTITION", START, by_id=False)
    made.refused(b"logs", 3, "MESSAGE_TOO_LARGE", START, by_id=False)
    rows = {row.topic: row for row in at_once(made.rows(START))}
    assert rows["logs"].refused_bytes == {"MESSAGE_TOO_LARGE": 3}
    assert (rows["orders"].appended_bytes, rows["orders"].throttled_bytes, rows["orders"].throttled_total) == (100, 15, 2)
    assert rows["orders"].refused_bytes == {"MESSAGE_TOO_LARGE": 10}
    assert rows["<other>"].refused_bytes == {"UNKNOWN_TOPIC_OR_PARTITION": 5}
    assert made.rate(START) == 100


def test_topic_id_and_name_share_meters():
    made = quotas()
    made.appended(FIVE["orders"], 10, START, by_id=True)
    assert append(made, "orders", 5).appended_bytes == 15
    assert made.find(FIVE["orders"], by_id=True) is made.find(b"orders", by_id=False)


def test_unknown_id_is_looked_up_and_its_meters_named():
    calls = []
    made = quotas(explicit={"payments": 5 * MB}, on_nameless=lambda: calls.append(1))
    new = bytes([9]) * 16
    made.appended(new, 10, START, by_id=True)
    made.appended(new, 10, START, by_id=True)
    assert calls == [1]
    assert "(id CQkJCQkJCQkJCQkJCQkJCQ)" in {row.topic for row in at_once(made.rows(START))}
    list_topics(made, {**FIVE, "new": new})
    assert append(made, "new", 1).appended_bytes == 21
    assert made.default_threshold == 1 * MB


def test_id_of_known_topic_joins_its_meters():
    made = quotas(topics={})
    new = bytes([9]) * 16
    made.appended(new, 10, START, by_id=True)
    append(made, "new", 5)
    list_topics(made, {"new": new})
    assert append(made, "new", 1).appended_bytes == 16


def test_nameless_ids_are_bounded_and_forgotten():
    made = quotas(topics={}, max_labelled=3)
    for number in range(MAX_NAMELESS + 5):
        made.appended(number.to_bytes(16, "big"), 1, START, by_id=True)
    assert made.find((MAX_NAMELESS + 1).to_bytes(16, "big"), by_id=True) is None
    for _ in range(2):
        rows = at_once(made.rows(START))
        assert sum(row.appended_bytes for row in rows) == MAX_NAMELESS + 5
        assert len(rows) == 4
        list_topics(made, {})
    list_topics(made, {})
    assert [row.topic for row in at_once(made.rows(START))] == ["<other>"]


def test_topics_over_the_limit_share_meters_and_labels():
    made = quotas(topics={}, max_topics=4, max_labelled=2)
    for number in range(8):
        append(made, f"t{number}", 10)
    rows = {row.topic: row for row in at_once(made.rows(START))}
    assert rows.keys() == {"t0", "t1", "<other>"}
    assert rows["<other>"].appended_bytes == 60
    assert rows["<other>"].threshold is None


def test_others_counter_never_falls_when_a_topic_goes():
    made = quotas(topics={"a": bytes(16), "b": bytes(16)}, max_labelled=1)
    append(made, "a", 10)
    append(made, "b", 20)
    list_topics(made, {"a": bytes(16)})
    assert {row.topic: row.appended_bytes for row in at_once(made.rows(START))} == {"a": 10, "<other>": 20}
    for _ in range(2):
        list_topics(made, {})
    append(made, "c", 1)  # the label is free again
    assert {row.topic for row in at_once(made.rows(START))} == {"c", "<other>"}


def test_idle_topics_are_shown_with_threshold():
    made = quotas(explicit={"payments": 5 * MB})
    rows = {row.topic: row for row in at_once(made.rows(START))}
    assert {name: (row.threshold, row.explicit, row.rate) for name, row in rows.items()} == {
        name: (5 * MB, True, 0.0) if name == "payments" else (1.25 * MB, False, 0.0) for name in FIVE
    }
    report = at_once(made.report(START))
    assert (report.meter, report.enforced, report.total.over) == ("window", True, False)


names = st.sampled_from(sorted(FIVE))


@given(st.lists(st.tuples(names, st.integers(1, 4 * MB), st.floats(0, 1)), max_size=60))
def test_some_topic_is_rejected_if_total_is_over(script):
    """While the total is over, some topic is over its share, because the shares add up to the total."""
    made = quotas(explicit={"payments": 5 * MB})
    now, sent = START, 0
    for name, size, pause in script:
        now += pause
        if not rejects(made, name, now):
            append(made, name, size, now)
            sent += size
        assert made.over(now) == any(rejects(made, each, now) for each in FIVE)
    assert sum(row.appended_bytes for row in at_once(made.rows(now))) == sent


@pytest.mark.parametrize("meter", ["one_minute", "window"])
@pytest.mark.parametrize("window", [Window(101, 1.0), Window(11, 10.0)])
def test_changed_window_keeps_rates(meter, window):
    made = TopicQuotas(TopicSettings(MB, {}, meter, Window(100, 1.0)), START, own=OwnTopics())
    made.peer_account("topic", "payments", START).elsewhere.record(50_000, START + 1)
    for second in range(1, 21):
        append(made, "payments", 1_000, START + second)
    before = made.known("topic", "payments").measure(START + 20)
    made.apply(replace(made.settings, window=window), START + 20)
    assert before > 0.0
    assert made.known("topic", "payments").measure(START + 20) == pytest.approx(before, rel=0.2)


def publish(made):
    """Publish all use, and return its topics."""
    found = list(made.changed())
    for _, account in found:
        account.shared_total = account.total()
    return {name for (kind, name), _ in found if kind == "topic"}


class LookedUp(dict):
    """Meters that may be looked up, but not listed. `visited` has the names."""

    def __init__(self, *given):
        super().__init__(*given)
        self.visited = set()

    def get(self, name, default=None):
        self.visited.add(name)
        return super().get(name, default)

    def __iter__(self):
        raise AssertionError("all topics are visited")

    items = keys = values = __iter__


def test_search_for_new_use_visits_no_idle_topic():
    made = quotas()
    for name in FIVE:
        append(made, name, 10)
    assert publish(made) == set(FIVE)
    append(made, "logs", 1)
    assert publish(made) == {"logs"}
    append(made, "audit", 1)
    made._uses = LookedUp(made._uses)
    assert publish(made) == {"audit"}
    assert made._uses.visited <= {"logs", "audit"}


def test_use_is_new_until_it_is_published():
    made = quotas()
    append(made, "logs", 10)
    for _ in range(2):
        assert {name for (_, name), _ in made.changed()} == {"logs", ""}
    assert publish(made) == {"logs"}
    assert list(made.changed()) == []


def test_use_of_an_id_is_new_once_its_name_is_known():
    made, new = quotas(topics={}), bytes([9]) * 16
    made.appended(new, 10, START, by_id=True)
    assert publish(made) == set()
    list_topics(made, {"new": new})
    assert publish(made) == {"new"}


def test_use_of_an_id_is_new_use_of_its_known_topic():
    made, new = quotas(topics={}), bytes([9]) * 16
    append(made, "new", 1)
    made.appended(new, 10, START, by_id=True)
    assert publish(made) == {"new"}
    list_topics(made, {"new": new})
    ((key, account),) = made.changed()
    assert (key, account.total() - account.shared_total) == (("topic", "new"), 10)


def test_deleted_topic_has_no_new_use():
    made = quotas(topics={})
    append(made, "gone", 10)
    for _ in range(3):
        list_topics(made, {})
    assert publish(made) == set()


def test_topic_may_be_used_while_new_use_is_listed():
    made = quotas()
    append(made, "logs", 1)
    found = made.changed()
    next(found)
    append(made, "audit", 1)
    assert [name for (_, name), _ in found] == [""]
    assert publish(made) == {"logs", "audit"}


def test_report_on_many_topics_takes_steps():
    made = quotas(max_labelled=10)
    for number in range(1_000):
        append(made, f"t{number}", 1)
    assert sum(1 for _ in made.report(START)) >= 10


def test_topic_joined_within_a_report_counts_once():
    """The counter of the other topics would fall in the next report."""
    made, new = quotas(topics={}, max_labelled=0), bytes([9]) * 16
    made.appended(new, 10, START, by_id=True)
    for number in range(200):
        append(made, f"t{number}", 1)
    steps = made.report(START)
    next(steps)
    list_topics(made, {"t7": new})
    (row,) = at_once(steps).rows
    assert (row.topic, row.appended_bytes) == ("<other>", 210)


def test_topic_used_within_a_report_has_one_row():
    made = quotas(max_labelled=20, topics={f"t{number}": bytes(16) for number in range(15)})
    for number in range(10):
        append(made, f"t{number}", 1)
    steps = made.report(START)
    next(steps)
    append(made, "t12", 1)
    assert sorted(row.topic for row in at_once(steps).rows) == sorted(f"t{number}" for number in range(15))


def test_first_idle_topics_of_many_are_shown():
    made = quotas(max_labelled=3, topics={f"t{number:04}": bytes(16) for number in reversed(range(2_000))})
    append(made, "t0001", 1)
    assert [row.topic for row in at_once(made.rows(START))] == ["t0001", "t0000", "t0002"]


def test_list_of_topics_visits_only_topics_that_it_lacks():
    made = quotas()
    for name in (*FIVE, "young"):
        append(made, name, 1)
    made._uses = LookedUp(made._uses)
    list_topics(made, {name: topic_id for name, topic_id in FIVE.items() if name != "logs"})
    assert made._unlisted.keys() == {"young", "logs"}


def test_topic_that_is_listed_again_keeps_its_meters():
    made = quotas()
    use = append(made, "logs", 1)
    for topics in ({}, FIVE):
        list_topics(made, topics)
    assert made.find(b"logs", by_id=False) is use
