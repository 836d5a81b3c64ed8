import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Resolution, Source, Tags
from gateway.quotas.quota_table import QuotaLimit, QuotaTable
from gateway.quotas.shadows import ShadowTable

KEY = "producer_byte_rate"

# Kafka's eight levels in their order: the configured entity, and the tags of the bucket of user U with client-id C.
LEVELS = [
    (ClientQuotaEntity("U", "C"), Tags("U", "C")),
    (ClientQuotaEntity("U", DEFAULT), Tags("U", "C")),
    (ClientQuotaEntity("U", None), Tags("U", None)),
    (ClientQuotaEntity(DEFAULT, "C"), Tags("U", "C")),
    (ClientQuotaEntity(DEFAULT, DEFAULT), Tags("U", "C")),
    (ClientQuotaEntity(DEFAULT, None), Tags("U", None)),
    (ClientQuotaEntity(None, "C"), Tags(None, "C")),
    (ClientQuotaEntity(None, DEFAULT), Tags(None, "C")),
]


def table(*entities, exempt=()):
    """The n-th of `entities` has a limit of n bytes per second, from 1 on. Those of `exempt` have no limit."""
    limited = [EntityQuota(entity, {KEY: float(limit)}) for limit, entity in enumerate(entities, 1)]
    return QuotaTable([*limited, *(EntityQuota(entity, exempt=True) for entity in exempt)])


@pytest.mark.parametrize("first", range(8))
def test_first_configured_level_wins(first):
    entity, tags = LEVELS[first]
    configured = [entity for entity, _ in LEVELS[first:]]
    assert table(*configured).resolve(KEY, "U", "C") == Resolution(tags, 1.0, entity, source=Source.FILE)
    last = Resolution(tags, 8.0 - first, entity, source=Source.FILE)
    assert table(*reversed(configured)).resolve(KEY, "U", "C") == last


@pytest.mark.parametrize(
    ("entity", "shared", "apart"),
    [
        (ClientQuotaEntity("U", None), [("U", "C"), ("U", "D"), ("U", "")], [("V", "C")]),
        (ClientQuotaEntity(DEFAULT, None), [("U", "C"), ("U", "D")], [("V", "C")]),
        (ClientQuotaEntity(None, "C"), [("U", "C"), ("V", "C")], [("U", "D")]),
        (ClientQuotaEntity(None, DEFAULT), [("U", "C"), ("V", "C")], [("U", "D"), ("U", "")]),
        (ClientQuotaEntity(DEFAULT, DEFAULT), [("U", "C")], [("U", "D"), ("V", "C"), ("U", "")]),
        (ClientQuotaEntity("U", DEFAULT), [("U", "C")], [("U", "D"), ("U", ""), ("V", "C")]),
    ],
    ids=str,
)
def test_clients_of_one_entity_share_a_bucket(entity, shared, apart):
    quotas = table(entity)
    tags = {quotas.resolve(KEY, *client).tags for client in shared}
    assert len(tags) == 1
    assert all(quotas.resolve(KEY, *client).tags not in tags for client in apart)


@pytest.mark.parametrize("entity", [LEVELS[i][0] for i in (1, 4, 7)], ids=str)
def test_client_without_client_id_gets_the_default(entity):
    assert table(entity).resolve(KEY, "U", "").limit == 1.0


def test_client_without_quota_is_measured_by_client_id():
    assert QuotaTable().resolve(KEY, "U", "C") == Resolution(Tags(None, "C"), None, None)


def test_quota_of_another_kind_does_not_count():
    assert table(LEVELS[0][0]).resolve("consumer_byte_rate", "U", "C").limit is None


@pytest.mark.parametrize("literal", [("<default>", "<default>"), ("<default>", "C"), ("U", "<default>")])
def test_client_named_default_is_not_the_default(literal):
    assert table(ClientQuotaEntity(*literal)).resolve(KEY, "U", "C").entity is None
    assert table(ClientQuotaEntity(*literal)).resolve(KEY, *literal).limit == 1.0
    assert table(ClientQuotaEntity(DEFAULT, DEFAULT)).resolve(KEY, *literal).tags == Tags(*literal)


U, C, D = "U", "C", DEFAULT


@pytest.mark.parametrize(
    ("limited", "exempt", "exempted_by"),
    [
        ((), (None, C), (None, C)),
        ((None, D), (None, C), (None, C)),  # at its own level the exemption overrides the limit
        ((D, D), (None, C), (None, C)),  # a name overrides a default at any level
        ((U, D), (None, C), (None, C)),
        ((D, C), (U, None), (U, None)),
        ((U, None), (None, C), None),  # a limit that names the client stays
        ((U, C), (U, None), None),
        ((U, None), (U, C), (U, C)),
        ((D, None), (None, D), None),  # a default exempts only at its own level
        ((None, D), (D, None), (D, None)),
        ((None, C), (D, D), (D, D)),
        ((U, None), (None, "other"), None),
    ],
)
def test_exemption_of_most_specific_entity_wins(limited, exempt, exempted_by):
    limits = [ClientQuotaEntity(*limited)] if limited else []
    resolution = table(*limits, exempt=[ClientQuotaEntity(*exempt)]).resolve(KEY, "U", "C")
    if exempted_by is None:
        assert (resolution.limit, resolution.exempt) == (1.0, False)
    else:
        assert (resolution.limit, resolution.exempt, resolution.entity) == (None, True, ClientQuotaEntity(*exempted_by))


def test_exempt_client_has_bucket_of_its_entity():
    exempt = ClientQuotaEntity(None, "mirror-maker")
    quotas = table(ClientQuotaEntity(DEFAULT, None), exempt=[exempt])
    resolution = Resolution(Tags(None, "mirror-maker"), None, exempt, exempt=True, source=Source.FILE)
    assert quotas.resolve(KEY, "U", "mirror-maker") == resolution
    assert quotas.resolve(KEY, "U", "other").tags == Tags("U", None)


def test_entity_with_limits_may_be_exempt():
    entity = ClientQuotaEntity("U", None)
    both = QuotaTable([EntityQuota(entity, {KEY: 5.0}, exempt=True)])
    assert both.resolve(KEY, "U", "C") == Resolution(Tags("U", None), None, entity, exempt=True, source=Source.FILE)


def test_api_overrides_file_for_same_entity_and_key():
    user, pair = ClientQuotaEntity("U", None), ClientQuotaEntity("U", "C")
    file = [EntityQuota(user, {KEY: 5.0, "other": 6.0}), EntityQuota(ClientQuotaEntity(None, "C"), {KEY: 7.0})]
    quotas = QuotaTable(file, {user: {KEY: 50.0}, pair: {"other": 60.0}})
    assert quotas.resolve(KEY, "U", "C") == Resolution(Tags("U", None), 50.0, user, source=Source.API)
    assert quotas.resolve("other", "U", "C") == Resolution(Tags("U", "C"), 60.0, pair, source=Source.API)
    assert quotas.resolve("other", "U", "X") == Resolution(Tags("U", None), 6.0, user, source=Source.FILE)
    assert quotas.resolve(KEY, "V", "C").source is Source.FILE
    assert quotas.resolve(KEY, "V", "X") == Resolution(Tags(None, "X"), None, None)
    assert QuotaTable(file).resolve(KEY, "U", "C") == Resolution(Tags("U", None), 5.0, user, source=Source.FILE)


def test_api_limit_of_exempt_entity_covers_its_key_only():
    exempt = ClientQuotaEntity(None, "mirror-maker")
    file = [EntityQuota(exempt, exempt=True), EntityQuota(ClientQuotaEntity(DEFAULT), {KEY: 5.0, "other": 6.0})]
    quotas = QuotaTable(file, {exempt: {KEY: 50.0}})
    assert quotas.resolve(KEY, "U", "mirror-maker").limit == 5.0  # the default user's limit overrides a client-id's
    assert quotas.resolve("other", "U", "mirror-maker").exempt
    assert QuotaTable(file[:1], {exempt: {KEY: 50.0}}).resolve(KEY, "U", "mirror-maker").limit == 50.0


def test_entities_with_limits_are_listed():
    user, client = ClientQuotaEntity("U", None), ClientQuotaEntity(None, "C")
    quotas = QuotaTable([EntityQuota(user, {KEY: 5.0}), EntityQuota(client, exempt=True)], {user: {"other": 6.0}})
    assert quotas.entities() == {user: {KEY: QuotaLimit(5.0, Source.FILE), "other": QuotaLimit(6.0, Source.API)}}


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (ClientQuotaEntity("alice", DEFAULT), "user=alice, client-id=<default>"),
        (ClientQuotaEntity(DEFAULT, None), "user=<default>"),
        (ClientQuotaEntity(None, ""), "client-id="),
        (ClientQuotaEntity(ip="10.0.0.1"), "ip=10.0.0.1"),
    ],
)
def test_entity_reads_as_in_the_config(entity, text):
    assert str(entity) == text


names = st.sampled_from(["U", "C", "", "<default>"])
parts = st.one_of(names, st.just(DEFAULT), st.none())
entities = st.builds(ClientQuotaEntity, parts, parts).filter(lambda entity: (entity.user, entity.client_id) != (None, None))


@pytest.mark.parametrize("entity", [(U, C), (U, D), (U, None), (D, C), (D, D), (D, None), (None, C), (None, D)])
def test_each_level_can_exempt_from_volumes(entity):
    quotas = QuotaTable([EntityQuota(ClientQuotaEntity(*entity), {KEY: 5.0}, exempt_from=("volumes",))])
    assert quotas.exempts("volumes", "U", "C")
    assert not quotas.exempts("topics", "U", "C")
    assert quotas.resolve(KEY, "U", "C").limit == 5.0
    assert quotas.exempts("volumes", "V", "X") is (entity[0] in (D, None) and entity[1] in (D, None))


def naive(limits, exempt, user, client_id):
    """The table of kafka-quotas.md row by row, and the README's rule of exemptions, without tags."""
    rows = [(user, client_id), (user, DEFAULT), (user, None), (DEFAULT, client_id), (DEFAULT, DEFAULT), (DEFAULT, None)]
    rows += [(None, client_id), (None, DEFAULT)]
    named = [row for row in rows if DEFAULT not in row]
    for row in rows:
        entity = ClientQuotaEntity(*row)
        if entity in exempt:
            return None
        if entity in limits:
            exempt_by_name = any(ClientQuotaEntity(*name) in exempt for name in named)
            return None if row not in named and exempt_by_name else limits[entity]
    return None


@given(st.dictionaries(entities, st.floats(1, 100), max_size=8), st.sets(entities, max_size=3), names, names)
def test_resolution_agrees_with_a_naive_model(limits, exempt, user, client_id):
    quotas = [EntityQuota(entity, {KEY: limit}) for entity, limit in limits.items()]
    quotas += [EntityQuota(entity, exempt=True) for entity in exempt]
    resolution = QuotaTable(quotas).resolve(KEY, user, client_id)
    assert resolution.limit == naive(limits, exempt, user, client_id)
    assert resolution.tags.user in (None, user)
    assert resolution.tags.client_id in (None, client_id)


@given(st.dictionaries(entities, st.floats(1, 100), max_size=8), names, names)
def test_second_resolution_equals_the_first(limits, user, client_id):
    quotas = QuotaTable(EntityQuota(entity, {KEY: limit}) for entity, limit in limits.items())
    resolution = quotas.resolve(KEY, user, client_id)
    assert quotas.again(KEY, resolution) == resolution


limits_by_key = st.dictionaries(st.sampled_from([KEY, "other"]), st.sampled_from([1.0, 2.0]), max_size=2)


@given(
    st.dictionaries(entities, st.tuples(limits_by_key, limits_by_key), max_size=4),
    st.lists(st.dictionaries(entities, limits_by_key, max_size=4), min_size=2, max_size=4),
)
@pytest.mark.parametrize("kind", [QuotaTable, ShadowTable])
def test_altered_table_equals_a_new_one(kind, file, alterations):
    """Shadow limits are in the second part of a row."""
    rows = [EntityQuota(entity, limits, shadow=shadows) for entity, (limits, shadows) in file.items()]
    table = kind(rows, alterations[0])
    for dynamic in alterations[1:]:
        before, (table, changes) = table, table.altered(dynamic)
        expected = kind(rows, dynamic)
        assert table.keys == expected.keys
        for key in (KEY, "other"):
            for entity in {*file, *dynamic}:
                tags = Resolution(entity.tags, None, None)
                assert table.again(key, tags) == expected.again(key, tags)
            assert expected.changed(key, before) <= changes.get(key, set())


@given(*[st.dictionaries(entities, st.tuples(limits_by_key, limits_by_key, st.booleans()), max_size=4) for _ in "ab"])
@pytest.mark.parametrize("kind", [QuotaTable, ShadowTable])
def test_next_table_names_every_changed_entity(kind, file, other):
    """The parts of a row: limits, shadow limits, and if the entity is exempt."""
    before, after = (
        kind([EntityQuota(entity, limits, exempt, shadow=shadows) for entity, (limits, shadows, exempt) in each.items()])
        for each in (file, other)
    )
    change = before.followed_by(after._rows, {})
    for key in (KEY, "other"):
        for entity in {*file, *other}:
            tags = Resolution(entity.tags, None, None)
            assert change.after.again(key, tags) == after.again(key, tags)
            if entity not in change.of(key):
                limits = [table._first(key, [(entity, entity.tags)]) for table in (before, change.after)]
                assert limits[0] == limits[1]


def test_removed_quotas_leave_no_long_name():
    in_file, by_api = ClientQuotaEntity("f" * 300), ClientQuotaEntity("a" * 300)
    before = table(in_file)
    both, _ = before.altered({in_file: {KEY: 5.0}, by_api: {KEY: 5.0}})
    assert set(both.entities()) == {in_file, by_api}
    after, _ = both.altered({})
    assert set(after.entities()) == {in_file}
    assert set(after._exact.values()) == {in_file}


def test_alteration_names_what_it_adds_changes_and_removes():
    a, b, c, d = (ClientQuotaEntity(name) for name in "abcd")
    before = QuotaTable([], {a: {KEY: 1.0}, b: {KEY: 1.0}})
    after, changes = before.altered({a: {KEY: 2.0}, c: {KEY: 1.0}, d: {"other": 1.0}})
    assert changes == {KEY: {a, b, c}, "other": {d}}
    assert [after.resolve(KEY, name, "").limit for name in "abc"] == [2.0, None, 1.0]


def test_alteration_that_only_replaces_names_both():
    a, b = ClientQuotaEntity("a"), ClientQuotaEntity("b")
    _, changes = QuotaTable([], {a: {KEY: 1.0}}).altered({b: {KEY: 1.0}})
    assert changes == {KEY: {a, b}}


def test_change_knows_if_a_group_is_in_it():
    rows = []
    table = QuotaTable(rows)
    assert table.followed_by(rows, {ClientQuotaEntity(group="g"): {KEY: 1.0}}).groups
    assert not table.followed_by(rows, {ClientQuotaEntity("u"): {KEY: 1.0}}).groups


def test_change_leads_from_its_own_table_only():
    rows, dynamic = [], {ClientQuotaEntity("u"): {KEY: 1.0}}
    table = QuotaTable(rows)
    change = table.followed_by(rows, dynamic)
    assert change.leads(table, rows, dynamic)
    assert not change.leads(QuotaTable(rows), rows, dynamic)


def test_small_quotas_are_counted_once_for_each_table():
    table = QuotaTable([EntityQuota(ClientQuotaEntity(name), {KEY: 1_000.0}) for name in "ab"])
    assert table.small_quotas()["produce"] == 2
    assert table.small_quotas() is table.small_quotas()


def test_second_resolution_is_the_same_object():
    table = QuotaTable([])
    assert table.resolve(KEY, "u", "c") is table.resolve(KEY, "u", "c")
    assert table.resolve_ip("connection_creation_rate", "10.0.0.1") is table.resolve_ip("connection_creation_rate", "10.0.0.1")


def test_address_has_a_quota_for_each_key():
    address = ClientQuotaEntity(ip="10.0.0.1")
    table = QuotaTable([EntityQuota(address, {"connection_creation_rate": 5.0})])
    assert table.resolve_ip("connection_creation_rate", "10.0.0.1").limit == 5.0
    other = table.resolve_ip("max_connections", "10.0.0.1")
    assert (other.limit, other.tags) == (None, Tags(None, None, ip="10.0.0.1"))


def test_shared_bucket_follows_its_own_entity_only():
    default = ClientQuotaEntity(DEFAULT)
    shared = Resolution(Tags("<other>", None, overflow=True), 1.0, default)
    before = QuotaTable([EntityQuota(default, {KEY: 1.0})])
    assert before.again(KEY, shared).limit == 1.0
    assert QuotaTable([]).again(KEY, shared) == Resolution(shared.tags, None, default)
