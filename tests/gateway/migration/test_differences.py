"""The brokers' quotas beside a config: differences, and rows that `weir check` accepts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.document import read_document
from gateway.config.entities import entity_quota
from gateway.config.load import parse_config
from gateway.migration.broker_admin import Cluster
from gateway.migration.broker_quotas import entity_of, translated
from gateway.migration.differences import Sign, differences, rows_text, summary
from gateway.migration.import_command import import_text
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota

SMALLEST = 'upstream: {bootstrap_servers: ["127.0.0.1:9"]}\nlisteners: [{name: clients, bootstrap_port: 29092}]\n'
CLUSTER = Cluster("a-cluster", {0: ("h", 1), 1: ("h", 2), 2: ("h", 3)})
Quotas = Mapping[str, float]


def rows(*values: Mapping[str, object]) -> list[EntityQuota]:
    return [entity_quota(value) for value in values]


@pytest.mark.parametrize("name", ["jürgen", "дата", "☃ 1", "\U0001f600", "null", "a: b"])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_rows_keep_their_names_in_any_encoding(name: str, encoding: str) -> None:
    """stdout escapes the characters that its encoding does not have."""
    text = rows_text(rows({"user": name, "producer_byte_rate": 1000}), translated({}, 1))
    (row,) = pasted(text.encode(encoding, "backslashreplace").decode(encoding))
    assert row.entity.user == name


def pasted(text: str) -> tuple[EntityQuota, ...]:
    """The rows of a config file with the printed text."""
    return parse_config(SMALLEST + text, source="pasted").quotas.entities


@pytest.mark.parametrize(
    ("broker", "config", "sign", "text"),
    [
        ({"producer_byte_rate": 10.0}, None, "+", "producer_byte_rate 30 (30 B/s; 10 x 3 brokers)"),
        ({"producer_byte_rate": 10.0}, {"producer_byte_rate": 30}, "=", "producer_byte_rate 30"),
        ({"producer_byte_rate": 10.0}, {"producer_byte_rate": 31}, "~", "31 in the config, 30 (30 B/s; 10 x 3 brokers) at the"),
        ({"producer_byte_rate": 10.0}, {"producer_byte_rate": 10}, "~", "it is the rate of one broker"),
        ({"producer_byte_rate": 10.0}, {"exempt": True}, "~", "exempt from rates in the config, and the brokers limit it"),
        ({"controller_mutation_rate": 2.5}, {"controller_mutation_rate": 2.5}, "=", "controller_mutation_rate 2.5"),
        ({}, {"request_rate": 7}, "-", "request_rate 7 (only in the config; it stays)"),
        ({}, {"exempt": ["topics"]}, "-", "exempt from topics in the config"),
        ({"request_percentage": 10.0}, {"request_rate": 7}, "-", "request_rate 7"),
    ],
)
def test_each_difference_has_its_sign(broker: Quotas, config: Quotas | None, sign: str, text: str) -> None:
    quotas = {entity_of({"user": "alice"}): broker} if broker else {}
    first, *_ = differences(translated(quotas, 3), rows({"user": "alice", **config}) if config else [])
    assert first.sign is Sign(sign)
    assert text in str(first)
    assert "user=alice" in str(first)


def test_mutation_rate_is_never_called_a_copied_rate() -> None:
    found = differences(
        translated({entity_of({"user": "a"}): {"controller_mutation_rate": 5.0}}, 3),
        rows({"user": "a", "controller_mutation_rate": 6}),
    )
    assert "one broker" not in str(found[0])


def test_summary_counts_quotas() -> None:
    quotas = {entity_of({"user": name}): {"producer_byte_rate": 10.0, "request_percentage": 1.0} for name in "abc"}
    config = rows(
        {"user": "a", "producer_byte_rate": 30}, {"user": "b", "producer_byte_rate": 5}, {"client-id": "x", "exempt": True}
    )
    assert summary(differences(translated(quotas, 3), config)) == "1 added, 1 changed, 1 the same, 1 only in the config"


def test_printed_rows_have_the_brokers_limits_and_lose_nothing() -> None:
    broker = translated(
        {
            entity_of({"user": "alice"}): {"producer_byte_rate": 10.0, "request_percentage": 5.0},
            entity_of({"user": "bob"}): {"consumer_byte_rate": 20.0},
            entity_of({"user": None, "client-id": None}): {"controller_mutation_rate": 1.5},
            entity_of({"ip": None}): {"connection_creation_rate": 4.0},
            entity_of({"client-id": "old"}): {"request_percentage": 5.0},
        },
        3,
    )
    config = rows(
        {"user": "weir", "exempt": True},
        {
            "user": "alice",
            "producer_byte_rate": 10,
            "request_rate": 7,
            "request_rates": {"Metadata": 5},
            "shadow": {"producer_byte_rate": 3, "request_rates": {"Metadata": 2}},
        },
        {"user": "bob", "exempt": ["rates", "topics"]},
    )
    text = rows_text(config, broker)
    found = {row.entity: row for row in pasted(text)}
    assert found == {
        ClientQuotaEntity("weir"): EntityQuota(ClientQuotaEntity("weir"), {}, exempt=True),
        ClientQuotaEntity("alice"): EntityQuota(
            ClientQuotaEntity("alice"),
            {"producer_byte_rate": 30, "request_rate": 7, "request_rates.Metadata": 5},
            shadow={"producer_byte_rate": 3, "request_rates.Metadata": 2},
        ),
        ClientQuotaEntity("bob"): EntityQuota(ClientQuotaEntity("bob"), {"consumer_byte_rate": 60}, exempt_from=("topics",)),
        ClientQuotaEntity(DEFAULT, DEFAULT): EntityQuota(
            ClientQuotaEntity(DEFAULT, DEFAULT), {"controller_mutation_rate": 1.5}
        ),
        ClientQuotaEntity(ip=DEFAULT): EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 12}),
    }
    lines = text.splitlines()
    of_alice = next(number for number, line in enumerate(lines) if "user: alice" in line)
    assert lines[of_alice].endswith(
        "# 10 x 3 brokers; request_rate only in the config; request_rates.Metadata only in the config"
    )
    assert "request_percentage 5, because" in lines[of_alice - 1], "above the row of its entity"
    assert "client-id=old: request_percentage 5, because" in lines[-1], "an entity without a row"
    assert next(line for line in lines if "user: bob" in line).endswith("# 20 x 3 brokers, exempt in the config")
    assert next(line for line in lines if "user: weir" in line).endswith("# only in the config")


def test_no_quotas_are_an_empty_list() -> None:
    text = import_text(CLUSTER, translated({}, 3), [], "weir.yaml")
    assert pasted(text) == ()
    assert "0 added, 0 changed, 0 the same, 0 only in the config" in text


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name != "<default>")


@given(st.dictionaries(NAMES, st.integers(min_value=1, max_value=2**62), min_size=1, max_size=4), st.integers(1, 9))
def test_any_name_survives_printing(limits: dict[str, int], brokers: int) -> None:
    """Names come from clients of the brokers: quotes, colons, line ends, other scripts, `yes` and `null`."""
    quotas = {
        entity_of({"user": name, "client-id": None}): {"producer_byte_rate": float(limit)} for name, limit in limits.items()
    }
    broker = translated(quotas, brokers)
    text = import_text(CLUSTER, broker, [], "weir.yaml")
    found = [entity_quota(row) for row in read_document(text, source="printed").data["quotas"]["entities"]]
    assert {row.entity.user: row.limits["producer_byte_rate"] for row in found} == {
        quota.target.user: quota.limit for quota in broker.moved
    }
    assert {row.entity.user for row in found} == set(limits)


@pytest.mark.parametrize("name", ["x\n  - {user: evil, exempt: true}", "x\u2028y", "x\x85y", "# no", "\x1b[31m"])
def test_names_cannot_leave_their_comment(name: str) -> None:
    quotas: dict[Any, dict[str, float]] = {entity_of({"user": name}): {"request_percentage": 1.0, "producer_byte_rate": 1.0}}
    text = import_text(CLUSTER, translated(quotas, 3), rows({"user": name, "consumer_byte_rate": 5}), "weir.yaml")
    (row,) = pasted(text)
    assert row.entity == ClientQuotaEntity(name)
    assert all(
        char.isprintable() or char == "\n" for line in text.splitlines() if line.lstrip().startswith("#") for char in line
    )


def lines_of(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_comments_explain_the_factor_and_missing_brokers() -> None:
    quotas = {entity_of({"ip": None}): {"connection_creation_rate": 4.0}}
    three = "\n".join(lines_of(import_text(CLUSTER, translated(quotas, 3), [], "weir.yaml")))
    assert "its limits are 3 times as high" in three
    assert "--brokers 1" in three
    assert "give Weir's own address a higher rate there, and import again." in three
    kept = "\n".join(lines_of(import_text(CLUSTER, translated(quotas, 1), [], "weir.yaml")))
    assert "times as high" not in kept
    assert "The number of brokers is that of --brokers: 1" in kept


def test_import_copies_figures_with_scope_broker() -> None:
    quotas = {
        entity_of({"user": "a"}): {"producer_byte_rate": 4.0, "controller_mutation_rate": 2.5},
        entity_of({"ip": None}): {"connection_creation_rate": 4.0},
    }
    text = import_text(CLUSTER, translated(quotas, None), rows({"user": "a", "producer_byte_rate": 12}), "weir.yaml")
    assert yaml.safe_load(text)["quotas"]["entities"] == [
        {"user": "a", "producer_byte_rate": 4, "controller_mutation_rate": 2.5},
        {"ip": "<default>", "connection_creation_rate": 4},
    ]
    comments = "\n".join(lines_of(text))
    assert "so does Weir with quotas.scope: broker. The figures stay the same." in comments
    assert "12 in the config, 4 (4 B/s; 4 at each broker) at the brokers" in comments
    assert "--brokers" not in comments


def test_output_is_yaml_with_one_section() -> None:
    text = import_text(CLUSTER, translated({entity_of({"user": "a"}): {"producer_byte_rate": 4.0}}, 3), [], "weir.yaml")
    assert yaml.safe_load(text) == {"quotas": {"entities": [{"user": "a", "producer_byte_rate": 12}]}}
