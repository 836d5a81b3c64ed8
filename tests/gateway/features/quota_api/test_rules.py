"""The rules of the quota API. The expected answers were recorded from Apache Kafka 4.3.0."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.alterations import Change, MadeChange, QuotaApiError
from gateway.features.quota_api.rules import (
    MAX_ENTITIES,
    ListedQuotas,
    alteration,
    altered,
    check_room,
    described,
    ips,
    undone,
    with_brokers,
)
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.quota_table import QuotaTable
from gateway.steps import at_once
from protocol.bodies.client_quotas import AlterEntry, AlterResult, Component, DescribedEntity, EntityPart, Op

PRODUCE, FETCH, CONNECT, REQUEST = "producer_byte_rate", "consumer_byte_rate", "connection_creation_rate", "request_percentage"
ADDRESSES = {"1.2.3.4", "::1", "localhost"}
U, IP = ("user", "u"), ("ip", "1.2.3.4")


def entry(*entity, **ops):
    return AlterEntry(tuple(EntityPart(*part) for part in entity), tuple(Op(key, value) for key, value in ops.items()))


def found_in(quotas, components, *, strict, rows=()):
    return at_once(described(ListedQuotas(quotas, rows, QuotaTable(rows)), components, strict=strict))


def alteration_of(*entries):
    return alteration(entries, ADDRESSES.__contains__)


BAD_COMBINATION = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"

ONE_ENTRY = [
    (entry(U, producer_byte_rate=100.0), None),
    (entry(("user", None), producer_byte_rate=100.0), None),
    (entry(("client-id", None), ("user", None), producer_byte_rate=6.0), None),
    (entry(producer_byte_rate=1.0), "Invalid empty client quota entity"),
    (entry(("x", "y"), producer_byte_rate=1.0), "Unhandled client quota entity type: x"),
    (entry(("", "y"), producer_byte_rate=1.0), "Unhandled client quota entity type: "),
    (entry(("user", ""), producer_byte_rate=1.0), "Empty user not supported"),
    (entry(("client-id", ""), producer_byte_rate=1.0), "Empty client-id not supported"),
    (entry(("ip", ""), connection_creation_rate=1.0), "Empty ip not supported"),
    (entry(IP, U, connection_creation_rate=1.0), BAD_COMBINATION),
    (entry(("client-id", "c"), IP, connection_creation_rate=1.0), BAD_COMBINATION),
    (entry(("client-id", "c"), IP, U, connection_creation_rate=1.0), BAD_COMBINATION),
    (entry(("ip", "not a host"), connection_creation_rate=1.0), "not a host is not a valid IP or resolvable host."),
    (entry(("ip", "localhost"), connection_creation_rate=1.0), None),
    (entry(("ip", "::1"), connection_creation_rate=1.0), None),
    (entry(("ip", None), connection_creation_rate=1.0), None),
    (entry(U, connection_creation_rate=1.0), "Invalid configuration key connection_creation_rate"),
    (entry(IP, producer_byte_rate=1.0), "Invalid configuration key producer_byte_rate"),
    (entry(IP, request_percentage=1.0), "Invalid configuration key request_percentage"),
    (entry(U, bad=1.0), "Invalid configuration key bad"),
    (entry(U, bad=None), None),
    (entry(U, **{"SCRAM-SHA-256": 1.0}), "Invalid configuration key SCRAM-SHA-256"),
    (entry(U, producer_byte_rate=0.0), "Quota producer_byte_rate must be greater than 0"),
    (entry(U, producer_byte_rate=-1.0), "Quota producer_byte_rate must be greater than 0"),
    (entry(U, producer_byte_rate=-math.inf), "Quota producer_byte_rate must be greater than 0"),
    (entry(U, producer_byte_rate=math.inf), "Proposed value for producer_byte_rate is too large for a LONG."),
    (entry(U, producer_byte_rate=1e300), "Proposed value for producer_byte_rate is too large for a LONG."),
    (entry(U, producer_byte_rate=2.0**63), None),
    (entry(IP, connection_creation_rate=2.0**31), "Proposed value for connection_creation_rate is too large for an INT."),
    (entry(IP, connection_creation_rate=2.0**31 - 1), None),
    (entry(IP, connection_creation_rate=1.5), "connection_creation_rate cannot be a fractional value."),
    (entry(U, producer_byte_rate=10_000.5), "producer_byte_rate cannot be a fractional value."),
    (entry(U, producer_byte_rate=10_000.0000005), None),
    (entry(U, producer_byte_rate=9_999.9999995), "producer_byte_rate cannot be a fractional value."),
    (entry(U, producer_byte_rate=1e-7), None),
    (entry(U, request_percentage=12.5), None),
    (entry(U, request_percentage=0.0), "Quota request_percentage must be greater than 0"),
    (entry(U, producer_byte_rate=5.0, bad=1.0), "Invalid configuration key bad"),
    (entry(U, producer_byte_rate=-5.0, bad=1.0), "Invalid configuration key bad"),
    (entry(U), None),
]


@pytest.mark.parametrize(("given_entry", "text"), ONE_ENTRY, ids=str)
def test_alteration_is_answered_as_by_a_broker(given_entry, text):
    found = alteration_of(given_entry)
    ((entity, result),) = found.results.items()
    assert set(entity) == set(given_entry.entity)
    assert result == AlterResult(0 if text is None else 42, text, entity)
    changed = {change.key: change.value for change in found.changes}
    forwarded = {op.key: op.value for each in found.for_broker for op in each.ops}
    assert changed | forwarded == (dict(given_entry.ops) if text is None else {})
    assert forwarded.keys() <= {REQUEST}


GROUP, UNKNOWN_GROUP = ("group", "jobs"), "There is no group x in quotas.groups of Weir's config file: add it there first."


@pytest.mark.parametrize(
    ("given_entry", "text"),
    [
        (entry(GROUP, **{"producer_byte_rate": 100.0, "request_rate": 5.0, "request_rates.Metadata": 0.5}), None),
        (entry(("group", "x"), producer_byte_rate=100.0), UNKNOWN_GROUP),
        (entry(("group", "x"), producer_byte_rate=None), None),
        (entry(("group", None), producer_byte_rate=1.0), "There is no default group, name a group of Weir's config file"),
        (entry(("group", ""), producer_byte_rate=1.0), "Empty group not supported"),
        (
            entry(GROUP, U, producer_byte_rate=1.0),
            "Invalid quota entity combination, a group can not be combined with other entities",
        ),
        (entry(GROUP, request_percentage=1.0), "Invalid configuration key request_percentage"),
        (entry(GROUP, connection_creation_rate=1.0), "Invalid configuration key connection_creation_rate"),
        (entry(GROUP, producer_byte_rate=0.0), "Quota producer_byte_rate must be greater than 0"),
    ],
    ids=str,
)
def test_quotas_of_groups_are_altered(given_entry, text):
    found = alteration([given_entry], ADDRESSES.__contains__, {"jobs"})
    (result,) = found.results.values()
    assert (result.error_code, result.message) == (0 if text is None else 42, text)
    changed = [(change.entity, change.key, change.value) for change in found.changes]
    entity = ClientQuotaEntity(group=given_entry.entity[0].name)
    assert changed == ([(entity, *op) for op in given_entry.ops] if text is None else [])
    assert found.for_broker == []


BEFORE_LOGIN = "clients send it before Weir knows their user, and a muted client cannot log in"
ONLY_IN_FILE = ": only Weir's config file can set it. Write"
SHADOW = f"{ONLY_IN_FILE} shadow: {{producer_byte_rate: NUMBER}} into a row of quotas."


@pytest.mark.parametrize(
    ("entity", "key", "end"),
    [
        (U, "shadow.producer_byte_rate", SHADOW + "entities."),
        (GROUP, "shadow.producer_byte_rate", SHADOW + "groups."),
        (
            U,
            "shadow.request_rates.Metadata",
            f"{ONLY_IN_FILE} shadow: {{request_rates: {{Metadata: NUMBER}}}} into a row of quotas.entities.",
        ),
        (U, "max_connections", f"{ONLY_IN_FILE} max_connections: NUMBER into a row of quotas.entities."),
        (GROUP, "max_connections", ""),
        (U, "request_rates.metadata", ": did you mean request_rates.Metadata?"),
        (U, "request_rates.x", ": write the name of an API as Kafka spells it, such as request_rates.Metadata."),
        (U, "request_rates", ": write the name of an API as Kafka spells it, such as request_rates.Metadata."),
        (
            U,
            "request_rates.SaslHandshake",
            f": SaslHandshake can not be limited, because {BEFORE_LOGIN}.",
        ),
        (IP, "request_rates.Metadata", ""),
        (U, "shadows", ""),
    ],
)
def test_invalid_key_of_weirs_own_names_the_remedy(entity, key, end):
    found = alteration([entry(entity, **{key: 5.0})], ADDRESSES.__contains__, {"jobs"})
    (result,) = found.results.values()
    assert (result.error_code, result.message) == (42, f"Invalid configuration key {key}{end}")
    assert found.changes == []


def test_description_finds_groups():
    quotas = {ClientQuotaEntity(group="jobs"): {PRODUCE: 5.0}, ClientQuotaEntity("jobs"): {PRODUCE: 6.0}}
    jobs = DescribedEntity((EntityPart("group", "jobs"),), ((PRODUCE, 5.0),))
    for components in ([Component("group", 0, "jobs")], [Component("group", 2, None)]):
        assert found_in(quotas, components, strict=True) == [jobs]
    assert found_in(quotas, [Component("group", 0, "x")], strict=True) == []
    assert len(found_in(quotas, [], strict=False)) == 2


@pytest.mark.parametrize(("key", "text"), [(PRODUCE, "must be greater than 0"), (REQUEST, "must be greater than 0")])
def test_nan_is_refused_unlike_in_kafka(key, text):
    (result,) = alteration_of(entry(U, **{key: math.nan})).results.values()
    assert result.message == f"Quota {key} {text}"


def test_infinite_quota_is_refused_unlike_in_kafka():
    (result,) = alteration_of(entry(U, request_percentage=math.inf)).results.values()
    assert result.message == "Proposed value for request_percentage is too large for a DOUBLE."


def test_entity_is_named_in_broker_order():
    (entity,) = alteration_of(entry(U, ("client-id", "c"), producer_byte_rate=6.0)).results
    assert entity == (EntityPart("client-id", "c"), EntityPart("user", "u"))


def test_last_of_repeated_entity_types_wins():
    found = alteration_of(entry(U, ("user", "v"), producer_byte_rate=5.0))
    assert found.changes == [Change(ClientQuotaEntity("v"), PRODUCE, 5.0)]
    assert list(found.results) == [(EntityPart("user", "v"),)]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([U], "{user=u}"),
        ([("user", None), ("client-id", "k")], "{client-id=k, user=null}"),
        ([("ip", None)], "{ip=null}"),
    ],
)
def test_repeated_entity_is_refused(parts, text):
    key = CONNECT if parts[0][0] == "ip" else PRODUCE
    found = alteration_of(entry(*parts, **{key: 3.0}), entry(*reversed(parts), **{key: 4.0}))
    (result,) = found.results.values()
    assert result[:2] == (42, f"Ignoring duplicate entity ClientQuotaEntity(entries={text})")
    assert [change.value for change in found.changes] == [3.0]  # as in Kafka, the first entry still applies


def test_repeated_key_applies_nothing():
    found = alteration_of(AlterEntry((EntityPart(*U),), (Op(PRODUCE, 1.0), Op(PRODUCE, None))))
    (result,) = found.results.values()
    assert result[:2] == (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=u})")
    assert found.changes == found.for_broker == []


def test_good_entities_are_altered_despite_bad_ones():
    found = alteration_of(entry(("user", "a"), producer_byte_rate=5.0), entry(("user", "b"), producer_byte_rate=-5.0))
    assert [result.error_code for result in found.results.values()] == [0, 42]
    assert found.changes == [Change(ClientQuotaEntity("a"), PRODUCE, 5.0)]


def test_broker_quotas_are_split_off():
    found = alteration_of(entry(U, ("client-id", None), producer_byte_rate=5.0, request_percentage=None))
    assert found.changes == [Change(ClientQuotaEntity("u", DEFAULT), PRODUCE, 5.0)]
    assert found.for_broker == [entry(("client-id", None), U, request_percentage=None)]


def test_ips_to_look_up_are_collected():
    assert ips([entry(IP), entry(("ip", None)), entry(("ip", "")), entry(U), entry(("ip", "host"))]) == {"1.2.3.4", "host"}


def test_changes_keep_other_keys():
    before = {ClientQuotaEntity("a"): {PRODUCE: 1.0, FETCH: 2.0}, ClientQuotaEntity("b"): {PRODUCE: 3.0}}
    changes = [
        Change(ClientQuotaEntity("a"), PRODUCE, 10.0),
        Change(ClientQuotaEntity("b"), PRODUCE, None),
        Change(ClientQuotaEntity("c"), PRODUCE, None),
    ]
    after = altered(before, changes)
    assert after == {ClientQuotaEntity("a"): {PRODUCE: 10.0, FETCH: 2.0}}
    assert before[ClientQuotaEntity("a")] == {PRODUCE: 1.0, FETCH: 2.0}
    made = [MadeChange(each, before.get(each.entity, {}).get(each.key)) for each in changes]
    assert altered(after, undone(made, after)) == before


def test_undo_keeps_change_by_another_gateway():
    entity = ClientQuotaEntity("a")
    mine, theirs = Change(entity, PRODUCE, 2.0), Change(entity, PRODUCE, 3.0)
    assert undone([MadeChange(mine, None)], altered({}, [mine, theirs])) == []


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("values", [*itertools.product((1.0, 2.0, None), repeat=3)])
@pytest.mark.parametrize("refused", [{0}, {0, 1}, {0, 2}, {0, 1, 2}])
def test_undo_leaves_the_last_accepted_change(values, refused, order):
    """The undos may have any order. Each is made twice, as if the first could not be saved."""
    entity, quotas, made = ClientQuotaEntity("a"), {ClientQuotaEntity("a"): {PRODUCE: 1.0}}, []
    for value in values:
        change = MadeChange(Change(entity, PRODUCE, value), quotas.get(entity, {}).get(PRODUCE))
        if made:
            made[-1].later = change
        made.append(change)
        quotas = altered(quotas, [change.change])
    for number in order:
        if number in refused:
            undone([made[number]], quotas)
            quotas = altered(quotas, undone([made[number]], quotas))
    accepted = [1.0, *(value for number, value in enumerate(values) if number not in refused)]
    assert quotas.get(entity, {}).get(PRODUCE) == accepted[-1]


def test_entities_of_a_table_are_bounded():
    full = altered({}, [Change(ClientQuotaEntity(str(n)), PRODUCE, 1.0) for n in range(MAX_ENTITIES)])
    check_room({}, full)
    more = altered(full, [Change(ClientQuotaEntity("one more"), PRODUCE, 1.0)])
    with pytest.raises(QuotaApiError, match="100000 entities"):
        check_room(full, more)
    check_room(more, altered(more, [Change(ClientQuotaEntity("0"), PRODUCE, 2.0)]))


def test_failed_changes_fail_only_their_entities():
    found = alteration_of(
        entry(U, producer_byte_rate=5.0, request_percentage=1.0),
        entry(("user", "v"), request_percentage=2.0),
        entry(("user", "w"), bad=1.0),
    )
    found.fail_changes(-1, "full")
    assert [result[:2] for result in found.results.values()] == [(-1, "full"), (0, None), (42, "Invalid configuration key bad")]
    assert found.changes == []
    assert [each.entity for each in found.for_broker] == [(EntityPart("user", "v"),)]


MIXED = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)

BAD_FILTERS = [
    ([("user", 0, "a"), ("user", 2, None)], 42, "Entity type user cannot appear more than once in the filter."),
    ([("", 0, "a")], 42, "Invalid empty entity type."),
    ([("x", 0, "a")], 35, "Unsupported entity type x"),
    ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    ([("user", 1, "a")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
    ([("user", 2, "a")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
    ([("user", 3, None)], 42, "Unknown match type 3"),
    ([("user", -1, "a")], 42, "Unknown match type -1"),
    ([("ip", 2, None), ("user", 2, None)], 42, MIXED),
    ([("client-id", 1, None), ("ip", 0, "1.2.3.4")], 42, MIXED),
]


@pytest.mark.parametrize(("components", "code", "text"), BAD_FILTERS, ids=str)
def test_filter_is_refused_as_by_a_broker(components, code, text):
    with pytest.raises(QuotaApiError) as caught:
        found_in({}, [Component(*each) for each in components], strict=False)
    assert (caught.value.code, caught.value.message) == (code, text)


parts = st.sampled_from(["a", "b", DEFAULT, None])
entities = st.builds(ClientQuotaEntity, parts, parts).filter(lambda entity: entity.parts()) | st.builds(
    ClientQuotaEntity, ip=st.sampled_from(["a", "b", DEFAULT])
)
matches = st.sampled_from([(0, "a"), (0, "b"), (0, "<default>"), (1, None), (2, None)])


@given(st.sets(entities), st.dictionaries(st.sampled_from(["user", "client-id"]), matches), st.booleans())
def test_filter_matches_naive_reading_of_kip_546(entities, components, strict):
    def fits(entity):
        names = {"user": entity.user, "client-id": entity.client_id, "ip": entity.ip}
        given_types = {kind for kind, name in names.items() if name is not None}
        for kind, (how, match) in components.items():
            if kind not in given_types or names[kind] != {0: match, 1: DEFAULT, 2: names[kind]}[how]:
                return False
        return not strict or given_types == set(components)

    quotas = {entity: {PRODUCE: float(number)} for number, entity in enumerate(entities, 1)}
    found = found_in(quotas, [Component(kind, *match) for kind, match in components.items()], strict=strict)
    assert {each.values for each in found} == {tuple(quotas[entity].items()) for entity in entities if fits(entity)}


def test_default_is_null_and_entities_keep_broker_order():
    (found,) = found_in({ClientQuotaEntity(DEFAULT, "c"): {PRODUCE: 1.0}}, [], strict=False)
    assert found == DescribedEntity((EntityPart("client-id", "c"), EntityPart("user", None)), ((PRODUCE, 1.0),))


class LookedUp(dict):
    """Quotas that may be looked up, but not listed."""

    def __iter__(self):
        raise AssertionError("all entities are visited")

    items = keys = __iter__


def test_exact_filter_visits_no_other_entity():
    quotas = LookedUp({ClientQuotaEntity("alice"): {PRODUCE: 1.0}, ClientQuotaEntity("bob"): {PRODUCE: 2.0}})
    (found,) = found_in(quotas, [Component("user", 0, "bob")], strict=True)
    assert found.values == ((PRODUCE, 2.0),)


def test_description_of_many_entities_takes_steps():
    quotas = {ClientQuotaEntity(f"u{number}"): {PRODUCE: 1.0} for number in range(100)}
    steps = described(ListedQuotas(quotas, (), QuotaTable()), [], strict=False)
    assert sum(1 for _ in steps) >= 5


@pytest.mark.parametrize("components", [[], [Component("user", 0, "u")]])
def test_exemption_of_the_file_leaves_limits_of_the_api(components):
    user = ClientQuotaEntity("u")
    rows = [EntityQuota(user, {}, exempt=True), EntityQuota(ClientQuotaEntity("v"), exempt=True)]
    (found,) = found_in({user: {PRODUCE: 1.0}}, components, strict=bool(components), rows=rows)
    assert found.values == ((PRODUCE, 1.0),)


def test_description_leaves_out_topics():
    assert found_in({ClientQuotaEntity(topic="t"): {"x": 1.0}}, [], strict=False) == []


def test_broker_quotas_that_are_not_weirs_are_shown():
    user, client = (EntityPart("user", "u"),), (EntityPart("client-id", "c"),)
    own = [DescribedEntity(user, ((PRODUCE, 1.0),))]
    brokers = [
        DescribedEntity(user, ((PRODUCE, 9.0), (REQUEST, 50.0))),
        DescribedEntity(client, ((FETCH, 9.0),)),
        DescribedEntity((EntityPart("user", "v"),), (("of_a_later_kafka", 7.0),)),
    ]
    assert at_once(with_brokers(own, brokers)) == [
        DescribedEntity(user, ((PRODUCE, 1.0), (REQUEST, 50.0))),
        DescribedEntity((EntityPart("user", "v"),), (("of_a_later_kafka", 7.0),)),
    ]
