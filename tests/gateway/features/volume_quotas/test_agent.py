"""The agent while no broker answers. tests/broker/test_volumes.py has real brokers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.cluster import client
from gateway.cluster.brokers import Brokers
from gateway.cluster.upstream import Upstream
from gateway.commands import main
from gateway.config.load import load_for_connections, parse_config
from gateway.config.model import UpstreamConfig
from gateway.config.problems import ConfigError
from gateway.features.volume_quotas import agent as agent_module
from gateway.features.volume_quotas.agent import FAILED, OK, Agent, agent_config, publish_volumes
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.proxy.counters import Counters


@pytest.mark.parametrize(("once", "code"), [(False, OK), (True, FAILED)])
async def test_sigterm_is_heard_while_brokers_are_silent(once, code, monkeypatch):
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_MS", 3_600_000)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        brokers = Brokers([server.getsockname()])
        upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), brokers, Counters())
        agent = asyncio.create_task(publish_volumes(Agent(1, ("/",), upstream, VolumesConfig(), ("127.0.0.1", 0)), once))
        connection, _ = await asyncio.get_running_loop().sock_accept(server)
        with closing(connection):
            os.kill(os.getpid(), signal.SIGTERM)
            assert await agent == code


HANGS = """
import os, sys, threading
from gateway.commands import main

def statvfs(path):
    print("hangs", flush=True)
    threading.Event().wait()

os.statvfs = statvfs
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.process
@pytest.mark.parametrize(("once", "code"), [([], OK), (["--once"], FAILED)])
def test_sigterm_is_heard_while_a_disk_hangs(once, code, tmp_path):
    config = tmp_path / "weir.yaml"
    config.write_text(CONFIG)
    command = ["volumes", "publish", "--config", str(config), "--path", "/", *once]
    with subprocess.Popen([sys.executable, "-c", HANGS, *command], stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout.readline() == "hangs\n"
            agent.terminate()
            assert agent.wait(60) == code
        finally:
            agent.kill()


async def test_bug_is_logged_with_a_reason_to_fold_by(monkeypatch, caplog):
    """The agent tries again each second."""

    async def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(agent_module, "publish_usage", fail)
    upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), Brokers([]), Counters())
    assert await publish_volumes(Agent(1, ("/",), upstream, VolumesConfig(), ("127.0.0.1", 0)), once=True) == FAILED
    (failed,) = [each for each in caplog.records if each.exc_info]
    assert failed.reason == "agent"


CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{bootstrap_port: 29092}]
quotas: {volumes: {agent: {broker_id: 3, paths: [/missing/of-config]}}}
"""


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["/missing/of-option"], "--path: does not exist on this host (value /missing/of-option)"),
        (None, "quotas.volumes.agent.paths: does not exist on this host (value /missing/of-config)"),
    ],
)
def test_missing_path_is_named_by_its_option_or_key(paths, text):
    with pytest.raises(ConfigError) as error:
        agent_config(parse_config(CONFIG, source="weir.yaml"), Path("weir.yaml"), None, paths)
    assert text in str(error.value)


def test_path_below_a_closed_folder_names_the_right(closed_folder):
    with pytest.raises(ConfigError) as error:
        agent_config(parse_config(CONFIG, source="weir.yaml"), Path("weir.yaml"), None, [f"{closed_folder}/kafka"])
    text = (
        f"--path: can't be looked at: Permission denied (value {closed_folder}/kafka) — let the user that runs the agent open"
    )
    assert text in str(error.value)


FOREIGN_FILES = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"], sasl: {mechanism: PLAIN, username: weir, password_file: weir.password}}
listeners: [{bootstrap_port: 29092, tls: {cert: gone.pem, key: gone.key, client_ca: gone.pem}}]
state: {path: /dev/null/weir.json}
notify: {targets: [{name: chat, url_file: gone.url}]}
"""


def test_agent_needs_the_files_of_upstream_alone(tmp_path, capsys):
    """So it runs beside a broker without the keys of listeners and the addresses of webhooks."""
    file = tmp_path / "weir.yaml"
    file.write_text(FOREIGN_FILES)
    assert main(["volumes", "publish", "--config", str(file), "--broker-id", "3", "--path", "/"]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert "upstream.sasl.password_file: names " in first
    assert last.endswith("1 error")
    (tmp_path / "weir.password").write_text("secret\n")
    assert load_for_connections(file).upstream.sasl.username == "weir"
