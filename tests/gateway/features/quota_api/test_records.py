"""The quotas of the API as a log of records: the order decides, and unreadable records change nothing."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.features.quota_api import records as logged_quotas
from gateway.features.quota_api import rules as client_quotas
from gateway.features.quota_api.records import CLAIM_SECONDS, QuotaRecords, claim, entity_record, rebased, settled
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity
from tests.gateway.features.quota_api.quota_table import ENTITIES, heard, plain_changes, take

ALICE, BOB = ClientQuotaEntity("alice", DEFAULT), ClientQuotaEntity("bob")
RATE = {"producer_byte_rate": 1e6}

tables = st.dictionaries(ENTITIES, st.dictionaries(st.sampled_from("ab"), st.floats(1e-9, 1e18), min_size=1), max_size=5)


@given(before=tables, after=tables)
def test_changes_turn_one_table_into_the_other(before, after):
    table = heard(*plain_changes({}, before))
    changes = table.changes(after)
    for record in changes:
        assert take(table, record) is None
    assert table.quotas == after
    assert len(changes) == sum(before.get(entity) != after.get(entity) for entity in {**before, **after})


@given(before=tables, after=tables)
def test_change_of_current_table_gives_wanted_table(before, after):
    assert rebased(before, after, before) == after
    assert rebased(before, before, after) == after


def test_change_keeps_concurrent_changes_of_others():
    before, after = {ALICE: {"a": 1.0, "b": 2.0}, BOB: {"a": 1.0}}, {ALICE: {"a": 1.0, "b": 3.0}}
    assert rebased(before, after, {ALICE: {"a": 9.0}, BOB: {"a": 1.0, "b": 9.0}}) == {
        ALICE: {"a": 9.0, "b": 3.0},
        BOB: {"b": 9.0},
    }
    assert rebased(before, after, {}) == {ALICE: {"b": 3.0}}


class Writer:
    """A gateway that changes single limits, and has read the log up to `position`."""

    def __init__(self, name, log):
        self.log = log
        self.table = QuotaRecords(name)
        self.position = 0
        self.published = []
        self.end = 0  # the offset behind `published`

    def read(self, count):
        for record in self.log[self.position : self.position + count]:
            assert take(self.table, record) is None
        self.position = min(len(self.log), self.position + count)

    def publish(self, records):
        self.log += records
        self.published, self.end = records, len(self.log)

    def complete(self):
        """True once no quotas have to be completed."""
        if self.position >= self.end:
            self.publish(self.table.completing(self.published))
        return not self.published


steps = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from("ab"), st.sampled_from([None, 1.0, 2.0]))


@given(st.lists(steps, max_size=20))
@example([(0, 0, "a", 1.0), (1, 0, "b", 2.0), (2, 1, "b", 2.0)])  # the last record is right by chance, the one before is not
@example([(0, 0, "b", 1.0), (0, 1, "a", 1.0), (2, 2, "a", None), (2, 1, "b", None), (0, 0, "a", None), (1, 3, "a", 1.0)])
@settings(max_examples=300)
def test_no_concurrent_change_is_lost_whatever_compaction_keeps(steps):
    log, expected = [], {}
    writers = [Writer(name, log) for name in "0123"]
    for number, count, key, limit in steps:
        writer = writers[number]
        writer.read(count)
        limits = writer.table.quotas.get(ALICE, {})
        if writer.complete() and limits.get(key) != limit:
            wanted = {name: value for name, value in (limits | {key: limit}).items() if value is not None}
            writer.publish(writer.table.changes({ALICE: wanted}))
            expected[key] = limit
    while not all(writer.complete() for writer in writers):
        for writer in writers:
            writer.read(len(log))
    left = {key: limit for key, limit in expected.items() if limit is not None}
    quotas = {ALICE: left} if left else {}
    for cut in range(len(log) + 1):
        head = {key: (key, value, *headers) for key, value, *headers in log[:cut]}
        assert heard(*head.values(), *log[cut:]).quotas == quotas
        without_tombstones = [record for record in head.values() if record[1] is not None]
        assert heard(*without_tombstones, *log[cut:]).quotas == quotas


def test_missing_quotas_are_those_without_a_record():
    table = heard(entity_record(ALICE, RATE), entity_record(BOB, {}))
    other = ClientQuotaEntity("carol")
    assert table.missing({ALICE: {"a": 1.0}, BOB: RATE, other: RATE}, 0, newer=False) == {other: RATE}
    assert table.missing({ALICE: {"a": 1.0}, BOB: RATE, other: RATE}, 9, newer=True) == {other: RATE}


def test_newer_quotas_replace_restored_ones():
    table = heard(entity_record(ALICE, RATE, restored=4), entity_record(BOB, RATE, restored=4), entity_record(BOB, {"b": 2.0}))
    known = {ALICE: {"a": 1.0}, BOB: {"a": 1.0}}
    assert table.missing(known, 5, newer=True) == {ALICE: {"a": 1.0}}
    assert table.missing(known, 3, newer=True) == {}


def first_changes(**limits):
    """The records of a gateway that sets these limits of alice one after the other, in a topic without earlier quotas."""
    table, records = heard(), []
    for key, limit in limits.items():
        records += table.changes({ALICE: table.quotas.get(ALICE, {}) | {key: limit}})
        assert take(table, records[-1]) is None
    return records


OLD, OLDER = entity_record(ALICE, {"a": 1.0, "b": 1.0}, restored=5), entity_record(ALICE, {"a": 7.0, "c": 7.0}, restored=4)


@pytest.mark.parametrize(
    "records",
    [
        [*first_changes(b=2.0), OLD],
        [OLD, *first_changes(b=2.0)],
        [*first_changes(b=2.0), OLDER, OLD],
        [*first_changes(b=2.0), OLD, OLDER],
    ],
    ids=["before", "after", "higher position comes later", "higher position comes first"],
)
def test_restored_quotas_keep_what_a_change_decides(records):
    """A gateway without old quotas sets `b`, and others put the old ones back, in any order."""
    table = heard(*records)
    assert table.quotas == {ALICE: {"a": 1.0, "b": 2.0}}


@pytest.mark.parametrize("limits", [{"a": 1.0, "b": 2.0}, {"a": 1.0}, {}], ids=["set", "removed", "all removed"])
def test_late_change_of_a_deleted_topic_decides_on_its_key(limits):
    """`a` was removed after the change had been sent, and before it arrived in the next topic."""
    deleted = QuotaRecords(topic=lambda: "first")
    assert take(deleted, entity_record(ALICE, {"a": 1.0, "b": 1.0} if limits else {"b": 1.0})) is None
    changes = deleted.changes({ALICE: limits} if limits else {})
    table = QuotaRecords(topic=lambda: "second")
    for record in [*changes, entity_record(BOB, RATE, restored=5), settled("h", 5)]:
        assert take(table, record) is None
    assert table.quotas.get(ALICE, {}) == {key: limit for key, limit in limits.items() if key == "b"}


def test_removal_decides_on_its_key_only():
    table = heard(settled("h", 1))
    (removal,) = table.unconfirmed({ALICE: ["b"]})
    assert heard(settled("h", 1), removal, OLD).quotas == {ALICE: {"a": 1.0}}
    assert table.missing({ALICE: {"a": 1.0}}, 5, newer=True) == {ALICE: {"a": 1.0}}


def test_all_changes_of_a_new_entity_decide():
    assert heard(*first_changes(b=2.0, c=3.0), OLD).quotas == {ALICE: {"a": 1.0, "b": 2.0, "c": 3.0}}


def test_newer_quotas_replace_restored_ones_beside_a_change():
    table = heard(OLDER)
    (change,) = table.changes({ALICE: {"a": 7.0, "c": 8.0}})
    assert heard(OLDER, change, OLD).quotas == {ALICE: {"a": 1.0, "b": 1.0, "c": 8.0}}
    assert heard(OLDER, change, settled("h", 5)).quotas == {ALICE: {"c": 8.0}}, "removed before the topic was deleted"


def test_restored_quotas_of_a_lower_position_leave_the_change():
    assert heard(*first_changes(b=2.0), OLDER, settled("h", 5)).quotas == {ALICE: {"b": 2.0}}


def test_change_of_dropped_quotas_decides_on_its_key_only():
    """Its gateway had not read yet that a newer gateway does not know the other quotas."""
    (change,) = heard(OLDER).changes({ALICE: {"a": 7.0, "c": 8.0}})
    assert heard(OLDER, settled("h", 5), change).quotas == {ALICE: {"c": 8.0}}


def test_entity_with_a_first_change_is_put_back():
    table = heard(*first_changes(b=2.0))
    known = {ALICE: {"a": 1.0}}
    assert table.missing(known, 5, newer=False) == known
    assert heard(*first_changes(b=2.0), OLD).missing(known, 5, newer=False) == {}


def test_request_that_changes_nothing_decides_on_its_keys():
    table = heard(settled("h", 1), *first_changes(b=2.0))
    assert table.unconfirmed({ALICE: ["b"]}) == []
    (record,) = table.unconfirmed({ALICE: ["a", "b"]})
    assert heard(settled("h", 1), *first_changes(b=2.0), record, OLD).quotas == {ALICE: {"b": 2.0}}


def test_record_matches_its_documentation():
    assert entity_record(ALICE, RATE) == (
        b'{"client-id": null, "user": "alice"}',
        b'{"version": 1, "quotas": {"producer_byte_rate": 1000000.0}}',
    )
    assert entity_record(ALICE, {}) == (b'{"client-id": null, "user": "alice"}', None)


def test_last_record_of_an_entity_wins():
    table = heard(
        entity_record(ALICE, RATE), entity_record(BOB, RATE), entity_record(ALICE, {"b": 2.0}), entity_record(BOB, {})
    )
    assert table.quotas == {ALICE: {"b": 2.0}}
    assert heard(entity_record(BOB, {})).quotas == {}, "the tombstone that compaction leaves"


KEY, VALUE = entity_record(ALICE, RATE)
BAD = {
    "no key": (None, VALUE, "damaged"),
    "no JSON": (b"alice", VALUE, "damaged"),
    "not UTF-8": (b"\xff", VALUE, "damaged"),
    "a list": (b"[]", VALUE, "damaged"),
    "an entity of nobody": (b"{}", VALUE, "damaged"),
    "an unknown type of entity": (b'{"team": "a"}', VALUE, "damaged"),
    "an empty name": (b'{"user": ""}', VALUE, "damaged"),
    "an ip with a user": (b'{"user": "a", "ip": "10.0.0.1"}', VALUE, "damaged"),
    "a name that is a number": (b'{"user": 7}', VALUE, "damaged"),
    "an empty value": (KEY, b"", "damaged"),
    "a cut value": (KEY, VALUE[:-3], "damaged"),
    "no quotas": (KEY, b'{"version": 1, "quotas": {}}', "damaged"),
    "a quota of nothing": (KEY, b'{"version": 1, "quotas": {"a": 0}}', "damaged"),
    "a quota that is no number": (KEY, b'{"version": 1, "quotas": {"a": NaN}}', "damaged"),
    "a quota that is text": (KEY, b'{"version": 1, "quotas": {"a": "1"}}', "damaged"),
    "a later version": (KEY, b'{"version": 2, "what": "ever"}', "version"),
    "a migration of a later version": (b"migration", b'{"version": 2, "claimed_by": null}', "version"),
    "a migration without a word": (b"migration", None, "damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_unreadable_record_is_skipped_and_counted(what):
    key, value, reason = BAD[what]
    table = heard(entity_record(ALICE, {"before": 1.0}))
    table.settled = False
    assert take(table, (key, value)) == reason
    assert table.quotas == {ALICE: {"before": 1.0}}
    assert table.skipped == {reason: 1}
    assert not table.settled


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"rubbish",
        b"{}",
        b'{"topic": "", "after": "x", "keys": []}',
        b'{"topic": "", "after": 1, "keys": [2]}',
        b'{"after": 1, "keys": []}',
        b" " * 20_000,
    ],
    ids=["empty", "no JSON", "no keys", "a hash that is text", "a key that is a number", "no topic", "too long"],
)
@pytest.mark.parametrize("limits", [RATE, {}], ids=["set", "removed"])
def test_change_with_unreadable_header_is_skipped(limits, header):
    table = heard(entity_record(ALICE, {"before": 1.0}))
    assert take(table, (*entity_record(ALICE, limits), ("change", header))) == "damaged"
    assert table.quotas == {ALICE: {"before": 1.0}}


def test_other_headers_and_later_fields_of_a_header_are_ignored():
    header = b'{"topic": "", "after": null, "keys": ["producer_byte_rate"], "since": 1}'
    table = heard((KEY, VALUE, ("other", b"rubbish"), ("change", header)))
    assert table.quotas == {ALICE: RATE}


def test_change_beside_one_of_weir_0_2_replaces_it():
    """Weir 0.2 writes no header, and replaces all limits of the entity."""
    table = heard(entity_record(ALICE, {"a": 1.0}))
    (change,) = table.changes({ALICE: {"a": 1.0, "b": 2.0}})
    assert take(table, change) is None
    assert take(table, entity_record(ALICE, {"a": 3.0})) is None
    assert table.quotas == {ALICE: {"a": 3.0}}


def test_fields_of_later_versions_are_ignored():
    table = heard((KEY, json.dumps({"version": 1, "quotas": RATE, "since": "yesterday"}).encode()))
    assert table.quotas == {ALICE: RATE}


def test_entities_are_bounded(monkeypatch):
    monkeypatch.setattr(logged_quotas, "MAX_ENTITIES", 1)
    assert client_quotas.MAX_ENTITIES > 1
    table = heard(entity_record(ALICE, RATE))
    assert take(table, entity_record(BOB, RATE)) == "too_many_entities"
    assert take(table, entity_record(ALICE, {"b": 1.0})) is None
    assert table.quotas == {ALICE: {"b": 1.0}}


def test_bytes_of_names_are_bounded(monkeypatch):
    monkeypatch.setattr(logged_quotas, "MAX_ALL_NAMES_BYTES", 35)
    long, other = ClientQuotaEntity(user="u" * 20), ClientQuotaEntity(user="v" * 20)
    table = heard(entity_record(long, {"key": 1.0}))
    assert take(table, entity_record(other, {"key": 1.0})) == "too_many_entities"
    assert take(table, entity_record(long, {"k" * 16: 1.0})) == "too_many_entities"
    assert take(table, entity_record(long, {"k" * 15: 1.0})) is None
    assert take(table, entity_record(long, {})) is None
    assert take(table, entity_record(other, {})) is None
    assert list(table.removed) == [long]
    assert take(table, entity_record(long, {"key": 1.0})) is None
    assert take(table, entity_record(other, {})) is None
    assert list(table.removed) == [other]


def test_nothing_is_kept_of_removed_entities_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(logged_quotas, "MAX_ENTITIES", 1)
    table = heard()
    for entity in (ALICE, BOB):
        for wanted in (RATE, {}):
            (change,) = table.changes({entity: wanted} if wanted else {})
            assert take(table, change) is None
    assert list(table.removed) == list(table._decided) == list(table._last) == [ALICE]


def test_bytes_of_decided_keys_are_bounded(monkeypatch):
    """Beyond the bound, a change decides on all keys."""
    monkeypatch.setattr(logged_quotas, "MAX_ALL_NAMES_BYTES", 40)
    table = heard(settled("h", 1))
    for entity in (ALICE, BOB):
        (removal,) = table.unconfirmed({entity: ["k" * 25]})
        assert take(table, removal) is None
    assert list(table._decided) == [ALICE]
    assert take(table, entity_record(ALICE, {})) is None
    assert table._decided_bytes == 0


@pytest.mark.parametrize("limits", [{}, RATE])
def test_name_above_the_limit_of_a_string_is_skipped(limits):
    """Kafka's strings have at most 32 767 bytes."""
    table = heard(entity_record(ClientQuotaEntity(client_id="x" * 32_767), limits))
    assert table.skipped == {}
    assert take(table, entity_record(ClientQuotaEntity(client_id="x" * 32_766 + "é"), limits)) == "damaged"
    assert len(table.quotas) + len(table.removed) == 1


def test_oversized_quotas_of_an_entity_are_skipped():
    table = heard()
    assert take(table, entity_record(ALICE, {"k" * 20_000: 1.0})) == "damaged"
    assert table.quotas == {}


# The claim to fill the topic from a state file.


@pytest.mark.parametrize(
    ("records", "is_settled"),
    [
        ([], False),
        ([claim("a")], False),
        ([settled()], True),
        ([entity_record(ALICE, RATE)], True),  # not new, from any gateway
        ([entity_record(ALICE, {})], True),
        ([claim("a"), entity_record(ALICE, RATE), entity_record(BOB, {})], False),  # more records may follow
        ([claim("a"), entity_record(ALICE, RATE), settled()], True),
    ],
)
def test_topic_is_settled_after_its_marker(records, is_settled):
    assert heard(*records).settled is is_settled


def test_first_claim_wins_until_it_expires():
    table = heard(claim("a"), claim("b"))
    assert table.claimant(CLAIM_SECONDS) == "a"
    assert table.claimant(CLAIM_SECONDS + 1.0) is None
    take(table, claim("c"), CLAIM_SECONDS + 1.0)
    assert table.claimant(CLAIM_SECONDS + 1.0) == "c"
    assert QuotaRecords().claimant(0.0) is None


def test_quotas_of_a_group_are_kept_without_its_row_in_the_file():
    jobs = ClientQuotaEntity(group="jobs")
    assert heard(*plain_changes({}, {jobs: {"producer_byte_rate": 5.0}})).quotas == {jobs: {"producer_byte_rate": 5.0}}
