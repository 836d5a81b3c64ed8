"""`weir volumes publish` as a process: its admin port, and the usage ages that a gateway shows."""

import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
import yaml

from loadtest.testkit.kafka import free_port, spawn, stop
from tests.hostile.stub_broker import NODE_ID
from tests.hostile.usage_topic import UsageTopic
from tests.weir_process import wait_until

pytestmark = pytest.mark.process


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


@contextmanager
def agent(directory, servers, admin_port):
    """An agent process for the stub's node. It publishes ten times per second."""
    volumes = {"source": "topic", "publish_interval_ms": 100, "freshness_seconds": 2, "agent": {"admin_port": admin_port}}
    config = {
        "upstream": {"bootstrap_servers": [servers]},
        "listeners": [{"name": "none", "host": "127.0.0.1", "advertised_host": "localhost", "bootstrap_port": 19_092}],
        "quotas": {"volumes": volumes},
    }
    file = directory / "agent.yaml"
    file.write_text(yaml.safe_dump(config))
    command = ["volumes", "publish", "--config", str(file), "--broker-id", str(NODE_ID), "--path", str(directory)]
    with (directory / "agent.log").open("w") as log:
        process = spawn([sys.executable, "-m", "gateway", *command], stdout=log, stderr=log)
    try:
        yield directory / "agent.log"
    finally:
        code = stop(process, timeout=20.0)
    assert code == 0


def test_agent_serves_probes_and_metrics(broker, tmp_path):
    usage = UsageTopic(broker)
    port = free_port()
    with agent(tmp_path, broker.bootstrap_servers, port):
        wait_until(lambda: get(port, "/readyz") == (200, "ready\n"), "the agent is ready")
        assert usage.keys()[0] == str(NODE_ID).encode()
        assert get(port, "/livez")[0] == 200
        assert 'weir_volume_connected{role="publisher"} 1.0' in get(port, "/metrics")[1]
        usage.refuses = True
        wait_until(lambda: get(port, "/readyz")[0] == 503, "the agent is not ready once its usage is stale")
        assert "usage was last published" in get(port, "/readyz")[1]
        page = get(port, "/metrics")[1]
        assert 'weir_volume_connected{role="publisher"} 0.0' in page
        assert "weir_volume_publication_errors_total 0.0" not in page


def test_agent_publishes_although_its_admin_port_is_taken(broker, tmp_path):
    usage = UsageTopic(broker)
    with agent(tmp_path, broker.bootstrap_servers, broker.port) as log:
        wait_until(usage.keys, "usage is published")
        assert f"quotas.volumes.agent.admin_port: 127.0.0.1:{broker.port} can't be bound" in log.read_text()


def test_gateway_shows_the_age_of_each_usage(broker, start_weir):
    usage = UsageTopic(broker)
    usage.alive = [NODE_ID, 2]
    usage.publish(100, age=100)
    usage.publish(100, broker=2)
    settings = {"source": "topic", "freshness_seconds": 600}
    weir = start_weir(broker.bootstrap_servers, quotas={"volumes": settings})

    def ages():
        found = weir.api("volumes")["usage_age_seconds"]
        return found if found.keys() == {str(NODE_ID), "2"} else None

    shown = wait_until(ages, "the ages of both brokers")
    assert 100 <= shown[str(NODE_ID)] < 160
    assert 0 <= shown["2"] < 60
    assert weir.metric("weir_volume_usage_age_seconds", broker=str(NODE_ID)) >= shown[str(NODE_ID)]
    assert weir.metric("weir_volume_freshness_seconds", when_unknown="PAUSE") == 600
