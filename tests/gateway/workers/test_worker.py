"""The settings of a gateway that is one of several workers."""

from pathlib import Path

import pytest

from gateway.config.load import parse_config
from gateway.config.problems import ConfigError
from gateway.features.ledger.config import LedgerConfig
from gateway.workers.worker import Worker, ledger_of

LEDGER = LedgerConfig.model_validate({"path": "ledger", "gateway": "weir-a"})


def test_each_worker_has_its_own_ledger_name(tmp_path: Path) -> None:
    names = [ledger_of(LEDGER, Worker(number, tmp_path)).gateway for number in range(2)]
    assert names == ["weir-a-0", "weir-a-1"]
    assert ledger_of(LEDGER, None) is LEDGER


CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 29092}]
quotas:
  entities:
    - {client-id: "\N{ROCKET} on", controller_mutation_rate: 0.00005}
    - {user: "\\u0085\\u2028", controller_mutation_rate: 1.0e+16}
"""


def test_worker_starts_with_config_in_effect(tmp_path: Path) -> None:
    config = parse_config(CONFIG, source="weir.yaml")
    limits = [entity.limits["controller_mutation_rate"] for entity in config.quotas.entities]
    assert limits == [0.00005, 1e16]
    Worker(0, tmp_path).keep(config)
    assert Worker(1, tmp_path).config(tmp_path / "weir.yaml") == config


def test_secret_files_are_checked_again(tmp_path: Path) -> None:
    sasl = 'bootstrap_servers: ["127.0.0.1:9092"], sasl: {mechanism: PLAIN, username: weir, password_file: pw}'
    config = parse_config(CONFIG.replace('bootstrap_servers: ["127.0.0.1:9092"]', sasl), source="weir.yaml")
    Worker(0, tmp_path).keep(config)
    with pytest.raises(ConfigError, match=r"upstream\.sasl\.password_file"):
        Worker(0, tmp_path).config(tmp_path / "weir.yaml")


def test_unnamed_ledger_uses_the_host_name(tmp_path: Path) -> None:
    name = ledger_of(LEDGER.model_copy(update={"gateway": None}), Worker(3, tmp_path)).gateway
    assert name is not None
    assert name.endswith("-3")
    assert len(name) > 2
