"""Config texts for tests, and the problems and warnings that a text causes."""

import pytest

from gateway.config.load import parse_config
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError, Problem

UPSTREAM = 'upstream: {bootstrap_servers: ["127.0.0.1:9092"]}\n'
LISTENERS = "listeners: [{name: clients, bootstrap_port: 29092}]\n"
MINIMAL = UPSTREAM + LISTENERS


def entities(*rows: str) -> str:
    return MINIMAL + "quotas:\n  entities:\n" + "".join(f"    - {row}\n" for row in rows)


def listeners(*rows: str) -> str:
    return UPSTREAM + "listeners:\n" + "".join(f"  - {row}\n" for row in rows)


def servers(text: str) -> str:
    return LISTENERS + f"upstream: {{bootstrap_servers: {text}}}\n"


def parsed(text: str) -> WeirConfig:
    return parse_config(text, source="weir.yaml")


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return caught.value.problems


def check_problem(text: str, key: str, *words: str) -> None:
    """Fail unless `text` has one problem, of this key, whose message and remedy contain all `words`."""
    (problem,) = problems_of(text)
    assert problem.key == key
    assert [each for each in words if each not in str(problem)] == []
