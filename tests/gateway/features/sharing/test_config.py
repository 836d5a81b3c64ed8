"""The section `sharing`, and Weir's own topics, which must differ."""

import pytest

from gateway.config.load import parse_config
from gateway.config.problems import ConfigError, Problem

HEAD = 'upstream: {bootstrap_servers: ["127.0.0.1:9092"]}\nlisteners: [{name: clients, bootstrap_port: 21200}]\n'


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse_config(HEAD + text, source="weir.yaml")
    return caught.value.problems


def test_sharing_has_defaults() -> None:
    assert parse_config(HEAD, source="weir.yaml").sharing is None
    sharing = parse_config(HEAD + "sharing: {}", source="weir.yaml").sharing
    assert sharing is not None
    assert (sharing.topic, sharing.interval, sharing.when_unreachable) == ("__weir_usage", 0.2, "local")
    assert not sharing.fair_share


def test_empty_section_is_warned_of() -> None:
    config = parse_config(HEAD + "sharing:\n", source="weir.yaml")
    assert config.sharing is None
    assert any(line.startswith("sharing: is empty") for line in config.warnings())


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("{interval_ms: 49}", "sharing.interval_ms", "at least 50"),
        ("{interval_ms: 5001}", "sharing.interval_ms", "at most 5000"),
        ("{interval_ms: 0.2}", "sharing.interval_ms", "whole number"),
        ("{when_unreachable: open}", "sharing.when_unreachable", "'local' or 'fair_share'"),
        ('{topic: "a b"}', "sharing.topic", "letters, digits"),
        ("{topics: usage}", "sharing.topics", "topic"),
    ],
)
def test_invalid_value_names_its_key(text: str, key: str, words: str) -> None:
    (problem,) = problems_of(f"sharing: {text}\n")
    assert problem.key == key
    assert words in f"{problem.message} {problem.remedy}"


@pytest.mark.parametrize(
    ("text", "key", "first"),
    [
        ("sharing: {topic: a}\nquotas: {volumes: {topic: a}}\n", "quotas.volumes.topic", "sharing"),
        ("sharing: {topic: __weir_volume_usage}\nquotas: {volumes: {}}\n", "quotas.volumes.topic", "sharing"),
        ("sharing: {quotas_topic: a}\nledger: {path: /nowhere, topic: a}\n", "ledger.topic", "sharing"),
        ("quotas: {volumes: {topic: a}}\nledger: {path: /nowhere, topic: a}\n", "ledger.topic", "quotas.volumes"),
    ],
)
def test_own_topics_must_differ(text: str, key: str, first: str) -> None:
    (problem,) = problems_of(text)
    assert problem.key == key
    assert f"is a topic that {first} uses as well" in problem.message
