"""Texts of brokers in the output of commands: each stays within its line, and none acts on the terminal."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.commands import main
from protocol.api_keys import ApiKey
from tests.gateway.migration.stub_cluster import StubCluster

CONFIG = """\
upstream: {{bootstrap_servers: ["{servers}"]}}
listeners: [{{bootstrap_port: 1024}}]
quotas: {{entities: [{{user: alice, producer_byte_rate: 1000}}]}}
"""
RESTORE = """\
{"format": "weir-quotas-restore", "version": 1, "written_at": "x", "cluster_id": "4L6g", "bootstrap_servers": ["b:1"],
 "lifted": [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1.0}}], "kept": []}
"""
HOSTILE = "\x1b]0;title\x07\nweir.yaml: valid\x9b31m"
ESCAPED = "\\x1b]0;title\\x07\\nweir.yaml: valid\\x9b31m"
COMMANDS = {
    "import": ["quotas", "import", "--config", "weir.yaml"],
    "lift": ["quotas", "lift", "--config", "weir.yaml", "--dry-run"],
    "restore": ["quotas", "restore", "restore.json", "--config", "weir.yaml", "--dry-run"],
    "check": ["check", "--config", "weir.yaml", "--brokers"],
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    monkeypatch.chdir(tmp_path)
    with StubCluster() as running:
        Path("weir.yaml").write_text(CONFIG.format(servers=running.bootstrap_servers))
        Path("restore.json").write_text(RESTORE.replace("b:1", running.bootstrap_servers))
        yield running


def output(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(COMMANDS[command])
    text = "".join(capsys.readouterr())
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert "weir.yaml: valid\\x9b31m" not in text.splitlines()
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_brokers_refusal_stays_on_its_line(cluster: StubCluster, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.answers[ApiKey.DESCRIBE_CLIENT_QUOTAS] = lambda request: request.answer(
        error_code=42, error_message=HOSTILE, entries=None
    )
    assert ESCAPED in output(command, capsys)


@pytest.mark.parametrize("command", ["import", "lift", "restore"])
def test_unknown_quota_stays_on_its_line(cluster: StubCluster, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.quotas[(("user", HOSTILE),)] = {HOSTILE: 1.0, "consumer_byte_rate": 5.0}
    text = output(command, capsys)
    assert f"user={ESCAPED}: {ESCAPED} " in text
    if command == "import":
        rows = yaml.safe_load(text)["quotas"]["entities"]
        assert {row["user"] for row in rows} == {"alice", HOSTILE}


def test_import_says_that_its_dry_run_has_no_effect(cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.quotas[(("user", "alice"),)] = {"consumer_byte_rate": 5.0}
    found = []
    for options in ([], ["--dry-run"]):
        assert main([*COMMANDS["import"], *options]) == 0
        found.append(capsys.readouterr())
    assert (found[0].err, found[1].err) == ("", "--dry-run has no effect: import never changes anything\n")
    assert found[0].out == found[1].out
