"""A second gateway with the same state file must not start: each would overwrite the other's confirmed changes."""

import json
import os
import signal

import pytest

from loadtest.testkit.gateway_process import GatewayError
from tests.gateway.features.quota_api.test_handlers import alter, altered
from tests.weir_process import Weir

pytestmark = pytest.mark.process

KEY = "producer_byte_rate"
ADMINS = {"quota_admins": ["User:ANONYMOUS"]}


@pytest.fixture
def start(broker, tmp_path):
    """`start(name, path)`: a gateway with its own folder and ports and this state file."""
    running = []

    def start_one(name, path, **config):
        weir = Weir(tmp_path / name, broker.bootstrap_servers, {"state": {"path": str(path)}, **ADMINS, **config})
        running.append(weir)
        weir.start()
        return weir

    yield start_one
    for weir in running:
        if weir.process.poll() is None:
            assert weir.stop() == 0


def set_quota(client, user, rate):
    """Set a quota through the gateway and check that it confirms the change."""
    answer, _ = client.ask(alter(1, ({"user": user}, {KEY: rate})))
    assert answer == altered(1, ({"user": user}, 0, None))


def saved(path):
    """The users that have a quota in the state file."""
    return sorted(row["entity"]["user"] for row in json.loads(path.read_text())["client_quotas"])


def test_second_gateway_on_a_state_file_refuses(start, connect, tmp_path):
    path, link = tmp_path / "weir.state.json", tmp_path / "link.json"
    link.symlink_to(path)
    first = start("first", path)
    with pytest.raises(GatewayError, match="exit code 1") as refused:
        set_quota(connect(start("second", link)), "bob", 1e6)
    assert "state.path: another gateway uses the file" in str(refused.value)
    assert f"(value {link}) — stop the other gateway" in str(refused.value)
    set_quota(connect(first), "alice", 1e6)
    assert saved(path) == ["alice"]


def test_restart_right_after_a_kill_works(start, connect, tmp_path):
    path = tmp_path / "weir.state.json"
    first = start("first", path)
    set_quota(connect(first), "alice", 1e6)
    os.kill(first.pid, signal.SIGKILL)
    second = start("second", path)
    set_quota(connect(second), "bob", 1e6)
    assert saved(path) == ["alice", "bob"]


def test_symbolic_link_to_the_state_file_stays(start, connect, tmp_path):
    (tmp_path / "disk").mkdir()
    path, link = tmp_path / "disk" / "kept.json", tmp_path / "link.json"
    link.symlink_to(path)
    set_quota(connect(start("first", link)), "alice", 1e6)
    assert link.is_symlink()
    assert saved(path) == ["alice"]
