"""The section `quotas.volumes`."""

import pytest

from tests.gateway.config.texts import MINIMAL, check_problem, parsed


def volumes(text: str) -> str:
    return MINIMAL + f"quotas: {{volumes: {text}}}\n"


def test_volumes_are_off_unless_configured() -> None:
    assert parsed(MINIMAL).quotas.volumes is None
    assert parsed(volumes("")).quotas.volumes is None
    config = parsed(volumes("{}")).quotas.volumes
    assert config is not None
    assert (config.source, config.when_unknown, config.topic) == ("log_dirs", "PAUSE", "__weir_volume_usage")
    assert (config.freshness_seconds, config.publish_interval_ms, config.max_delay_ms) == (300, 30_000, 5_000)
    assert (str(config.soft.limit()), str(config.hard.limit())) == ("MinFreePercentage 15", "MinFreePercentage 5")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("{source: disks}", "quotas.volumes.source", "'log_dirs' or 'topic'"),
        ("{when_unknown: pause}", "quotas.volumes.when_unknown", "'PAUSE' or 'OPEN'"),
        ("{soft: {type: MinFree, level: 1}}", "quotas.volumes.soft.type", "MinFreePercentage"),
        ("{soft: {type: MinFreeBytes}}", "quotas.volumes.soft.level", "is missing"),
        ("{hard: {type: MinFreeBytes, level: -1}}", "quotas.volumes.hard.level", "at least 0"),
        ("{hard: {type: MinFreePercentage, level: 101}}", "quotas.volumes.hard", "from 0 to 100"),
        ("{soft: {type: MinFreePercentage, level: 4}}", "quotas.volumes", "at least 5"),
        (
            "{soft: {type: ConsumedSpace, level: 9}, hard: {type: ConsumedSpace, level: 8}}",
            "quotas.volumes",
            "at most 8",
        ),
        ("{freshness_seconds: 30}", "quotas.volumes", "freshness_seconds above 30"),
        ("{publish_interval_ms: 99}", "quotas.volumes.publish_interval_ms", "at least 100"),
        ("{max_delay_ms: 30000}", "quotas.volumes.max_delay_ms", "below 30000"),
        ('{topic: "a b"}', "quotas.volumes.topic", "letters, digits"),
        ("{agent: {broker: 1}}", "quotas.volumes.agent.broker", "broker_id"),
    ],
)
def test_invalid_volumes_value_names_its_key(text: str, key: str, words: str) -> None:
    check_problem(volumes(text), key, words)
