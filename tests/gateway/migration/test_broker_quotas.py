"""The brokers' quotas as limits of the whole cluster: multiplication, entities, and quotas that stay at the brokers."""

import math

import pytest

from gateway.migration.broker_quotas import (
    LARGEST,
    PER_BROKER,
    PER_CLUSTER,
    entity_of,
    entity_text,
    factor_text,
    limits_by_target,
    translated,
    waves,
)
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity
from gateway.quotas.kinds import ROW_KINDS, QuotaKind

ALICE = entity_of({"user": "alice"})
ANY_IP = entity_of({"ip": None})


@pytest.mark.parametrize(
    ("entity", "key", "at_broker", "brokers", "limit"),
    [
        (ALICE, "producer_byte_rate", 1048576.0, 1, 1048576),
        (ALICE, "producer_byte_rate", 1048576.0, 3, 3145728),
        (ALICE, "consumer_byte_rate", 1000.0, 5, 5000),
        (ANY_IP, "connection_creation_rate", 10.0, 3, 30),
        (ALICE, "controller_mutation_rate", 2.5, 3, 2.5),
        (ALICE, "producer_byte_rate", 0.5, 3, 1),
        (ALICE, "producer_byte_rate", float(2**53 - 1), 3, 3 * (2**53 - 1)),
        (ALICE, "producer_byte_rate", float(2**63), 3, LARGEST),
        (ALICE, "controller_mutation_rate", 1e308, 3, float(LARGEST)),
    ],
)
def test_rates_of_each_broker_are_multiplied(entity, key, at_broker, brokers, limit) -> None:
    (quota,) = translated({entity: {key: at_broker}}, brokers).moved
    assert (quota.limit, type(quota.limit)) == (limit, type(limit))
    assert (quota.entity, quota.key, quota.at_broker) == (entity, key, at_broker)


@pytest.mark.parametrize(
    ("parts", "key", "value", "reason"),
    [
        ({"user": "alice"}, "request_percentage", 50.0, "broker threads"),
        ({"user": "alice"}, "some_new_rate", 50.0, "does not know this quota"),
        ({"user": "alice"}, "producer_byte_rate", 0.0, "above 0"),
        ({"user": "alice"}, "producer_byte_rate", -1.0, "above 0"),
        ({"user": "alice"}, "producer_byte_rate", math.nan, "above 0"),
        ({"user": "alice"}, "controller_mutation_rate", math.inf, "above 0"),
        ({"user": "alice"}, "producer_byte_rate", 0.3, "1 or more"),
        ({"client-id": "etl"}, "connection_creation_rate", 5.0, "no such quota for this type"),
        ({"ip": "10.0.0.1"}, "producer_byte_rate", 5.0, "no such quota for this type"),
        ({"user": "<default>"}, "producer_byte_rate", 5.0, "means the default entity"),
        ({"user": "alice", "client-id": ""}, "producer_byte_rate", 5.0, "empty names"),
        ({"ip": "broker1.example.com"}, "connection_creation_rate", 5.0, "no host names"),
        ({"group": "etl"}, "producer_byte_rate", 5.0, "entities of the type group"),
        ({"ip": "10.0.0.1", "user": "alice"}, "producer_byte_rate", 5.0, "combination"),
    ],
)
def test_quota_without_equivalent_stays_at_brokers(parts, key, value, reason) -> None:
    found = translated({entity_of(parts): {key: value}}, 3)
    (quota,) = found.kept
    assert found.moved == ()
    assert (quota.entity, quota.key) == (entity_of(parts), key)
    assert reason in quota.text
    assert "\n" not in quota.text


@pytest.mark.parametrize(
    ("parts", "target", "text"),
    [
        ({"user": "alice"}, ClientQuotaEntity("alice"), "user=alice"),
        ({"user": None}, ClientQuotaEntity(DEFAULT), "user=<default>"),
        ({"client-id": "etl", "user": None}, ClientQuotaEntity(DEFAULT, "etl"), "user=<default>, client-id=etl"),
        ({"client-id": None}, ClientQuotaEntity(None, DEFAULT), "client-id=<default>"),
        ({"user": "a\nb"}, ClientQuotaEntity("a\nb"), "user=a\\nb"),
    ],
)
def test_entities_of_users_and_client_ids(parts, target, text) -> None:
    entity = entity_of(parts)
    (quota,) = translated({entity: {"producer_byte_rate": 1.0}}, 1).moved
    assert quota.target == target
    assert entity_text(entity) == text


def test_a_client_named_default_is_shown_in_quotes() -> None:
    assert entity_text(entity_of({"user": None, "client-id": "<default>"})) == 'user=<default>, client-id="<default>"'


@pytest.mark.parametrize(
    ("ip", "target"),
    [("10.1.2.3", "10.1.2.3"), ("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.1.2.3", "10.1.2.3"), (None, DEFAULT)],
)
def test_addresses_have_their_usual_spelling(ip, target) -> None:
    (quota,) = translated({entity_of({"ip": ip}): {"connection_creation_rate": 1.0}}, 1).moved
    assert quota.target == ClientQuotaEntity(ip=target)


def test_two_spellings_of_an_address_have_the_lower_limit() -> None:
    quotas = {
        entity_of({"ip": ip}): {"connection_creation_rate": rate} for ip, rate in (("::1", 7.0), ("0:0:0:0:0:0:0:1", 5.0))
    }
    found = translated(quotas, 1)
    assert len(found.moved) == 2
    assert limits_by_target(found.moved)[ClientQuotaEntity(ip="::1")]["connection_creation_rate"].limit == 5


def test_order_does_not_depend_on_the_answer() -> None:
    quotas = {entity_of(parts): {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0} for parts in (
        {"client-id": "etl"}, {"user": None}, {"user": "bob"}, {"user": "alice", "client-id": "etl"}, {"user": "alice"},
    )}  # fmt: skip
    backwards = dict(reversed(quotas.items()))
    assert translated(quotas, 2) == translated(backwards, 2)
    names = [entity_text(quota.entity) for quota in translated(quotas, 2).moved]
    assert names[::2] == ["user=alice", "user=alice, client-id=etl", "user=bob", "user=<default>", "client-id=etl"]


def test_quotas_are_removed_from_the_lowest_precedence_on() -> None:
    """Kafka's eight levels, and two of addresses. A client never falls back to a default that is still there."""
    levels = [
        {"user": "u", "client-id": "c"}, {"user": "u", "client-id": None}, {"user": "u"}, {"user": None, "client-id": "c"},
        {"user": None, "client-id": None}, {"user": None}, {"client-id": "c"}, {"client-id": None}, {"ip": "::1"}, {"ip": None},
    ]  # fmt: skip
    entities = [entity_of(parts) for parts in levels]
    assert waves(sorted(entities, key=str)) == [[entity] for entity in reversed(entities)]


def test_entities_of_one_level_are_one_wave() -> None:
    alice, bob, default = (entity_of({"user": name}) for name in ("alice", "bob", None))
    assert waves([alice, default, bob]) == [[default], [alice, bob]]


def test_kinds_of_kafka_have_a_scope() -> None:
    """Kafka 4.3: `QuotaConfig` has these keys, and `request_percentage`, which Weir cannot measure."""
    assert {"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"} == PER_BROKER
    assert {"controller_mutation_rate"} == PER_CLUSTER


@pytest.mark.parametrize("kind", [kind for kind in ROW_KINDS if kind.in_kafka], ids=lambda kind: kind.name)
def test_every_kind_of_kafka_is_moved(kind: QuotaKind) -> None:
    entity = ANY_IP if "ip" in kind.entity_types else ALICE
    assert translated({entity: {kind.config_key: 5.0}}, 3).moved


@pytest.mark.parametrize("kind", [kind for kind in ROW_KINDS if not kind.in_kafka], ids=lambda kind: kind.name)
def test_no_kind_of_weir_alone_is_moved(kind: QuotaKind) -> None:
    assert not translated({ALICE: {kind.config_key: 5.0}}, 3).moved, (
        f"{kind.name}: brokers do not have this quota — PER_BROKER and PER_CLUSTER must lack kinds without `in_kafka`"
    )


@pytest.mark.parametrize(
    ("key", "brokers", "text"),
    [("producer_byte_rate", 3, "10 x 3 brokers"), ("producer_byte_rate", 1, "10 x 1 broker"),
     ("producer_byte_rate", None, "10 at each broker"), ("controller_mutation_rate", None, "10 for the cluster"),
     ("controller_mutation_rate", 3, "10 for the cluster")],
)  # fmt: skip
def test_origin_of_a_limit_is_shown(key, brokers, text) -> None:
    (quota,) = translated({ALICE: {key: 10.0}}, brokers).moved
    assert factor_text(quota, brokers) == text
