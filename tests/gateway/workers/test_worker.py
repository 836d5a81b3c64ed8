"""The settings of a gateway that is one of several workers."""

import os
import sys
from pathlib import Path

import pytest

from gateway.config.effective import ConfigHistory
from gateway.config.load import parse_config
from gateway.config.problems import ConfigError
from gateway.features.ledger.config import LedgerConfig
from gateway.workers.worker import Worker, gateway_name

NO_CLAIMS = -1
HISTORY = ConfigHistory(4, 10.0, 20.0, {"success": 3, "failure": 1})


@pytest.mark.parametrize(
    ("ledger", "number", "name"),
    [
        (None, None, "host"),
        (None, 1, "host"),
        ({}, None, "host"),
        ({}, 3, "host-3"),
        ({"gateway": "weir-a"}, None, "weir-a"),
        ({"gateway": "weir-a"}, 0, "weir-a-0"),
        ({"gateway": "weir-a"}, 1, "weir-a-1"),
    ],
)
def test_each_worker_has_its_own_ledger_name(
    ledger: dict[str, str] | None, number: int | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    section = None if ledger is None else LedgerConfig.model_validate({"path": "ledger", **ledger})
    assert gateway_name(section, None if number is None else Worker(number, tmp_path, NO_CLAIMS)) == name


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
    Worker(0, tmp_path, NO_CLAIMS).keep(config, HISTORY)
    assert Worker(1, tmp_path, NO_CLAIMS).kept(tmp_path / "weir.yaml") == (config, HISTORY)


@pytest.mark.parametrize("older", ["config only", "no lines of groups"])
def test_supervisor_of_another_version_is_named(older: str, tmp_path: Path) -> None:
    """An upgrade may replace the files of a running Weir, and then a worker dies."""
    worker = Worker(0, tmp_path, NO_CLAIMS)
    worker.keep(parse_config(CONFIG, source="weir.yaml"), HISTORY)
    history, config = worker.config_file.read_text().split("\n")
    others = {"config only": config, "no lines of groups": f"{history}\n{config.replace('groups', 'others')}"}
    worker.config_file.write_text(others[older])
    with pytest.raises(ConfigError) as caught:
        worker.kept(tmp_path / "weir.yaml")
    line = "config in effect: a supervisor of another version has saved it — restart Weir: its files were replaced while it ran"
    assert [str(problem) for problem in caught.value.problems] == [line]


def test_kept_config_is_private(tmp_path: Path) -> None:
    """It has secrets. A link would lead the write elsewhere."""
    (tmp_path / "other").write_text("stays")
    for name in ("config.json", "config.new"):
        (tmp_path / name).symlink_to("other")
    Worker(0, tmp_path, NO_CLAIMS).keep(parse_config(CONFIG, source="weir.yaml"), HISTORY)
    assert (tmp_path / "config.json").lstat().st_mode & 0o777 == 0o600
    assert (tmp_path / "other").read_text() == "stays"


def test_end_of_the_supervisor_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, supervisors = os.pipe()
    with os.fdopen(ours) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        worker = Worker(0, tmp_path, NO_CLAIMS)
        assert worker.supervised
        os.close(supervisors)
        assert not worker.supervised


def test_secret_files_are_checked_again(tmp_path: Path) -> None:
    sasl = 'bootstrap_servers: ["127.0.0.1:9092"], sasl: {mechanism: PLAIN, username: weir, password_file: pw}'
    config = parse_config(CONFIG.replace('bootstrap_servers: ["127.0.0.1:9092"]', sasl), source="weir.yaml")
    Worker(0, tmp_path, NO_CLAIMS).keep(config, HISTORY)
    with pytest.raises(ConfigError, match=r"upstream\.sasl\.password_file"):
        Worker(0, tmp_path, NO_CLAIMS).kept(tmp_path / "weir.yaml")


def test_worker_starts_without_the_supervisors_files(tmp_path: Path) -> None:
    """The supervisor alone sends notifications, and each worker has a numbered file of recent use."""
    (tmp_path / "usage").mkdir()
    keys = "workers: 4\nstate: {usage_path: usage}\nnotify: {targets: [{name: a, url_file: hook.url}]}\n"
    config = parse_config(CONFIG + keys, source="weir.yaml")
    Worker(0, tmp_path, NO_CLAIMS).keep(config, HISTORY)
    assert Worker(3, tmp_path, NO_CLAIMS).kept(tmp_path / "weir.yaml") == (config, HISTORY)


def test_worker_needs_the_quotas_of_the_api(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    config = parse_config(f"{CONFIG}workers: 4\nstate: {{path: state}}\n", source="weir.yaml")
    Worker(0, tmp_path, NO_CLAIMS).keep(config, HISTORY)
    with pytest.raises(ConfigError, match=r"state\.path"):
        Worker(3, tmp_path, NO_CLAIMS).kept(tmp_path / "weir.yaml")
