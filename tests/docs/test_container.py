"""The container of the installation guide: the image, the options and the config fit together."""

import re
from pathlib import Path

import pytest
import yaml

from gateway.config.load import parse_config
from gateway.config.model import WeirConfig

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8").partition("\n## As a container\n")[2]
DOCKERFILE = (ROOT / "helm" / "docker" / "Dockerfile").read_text("utf-8")
(RUN,) = re.findall(r"docker run --detach (?:.*\\\n)*.*", SECTION)
VOLUMES = dict(reversed(each.split(":")[:2]) for each in re.findall(r'-v "?([^\s"]+)', RUN))
"""By the path in the container: the folder of the host, or the name of the volume."""


@pytest.fixture(scope="module")
def config() -> WeirConfig:
    return parse_config(SECTION.partition("```yaml\n")[2].partition("```")[0], source="config/weir.yaml")


def test_image_reads_the_mounted_config() -> None:
    path = Path(yaml.safe_load(re.findall(r"(?m)^CMD (.*)", DOCKERFILE)[0])[-1])
    name = SECTION.partition("```yaml\n# ")[2].partition("\n")[0]
    assert f"{VOLUMES[str(path.parent)]}/{path.name}" == f"$PWD/{name}"


def test_ports_of_the_listener_are_published(config: WeirConfig) -> None:
    (listener,) = config.listeners
    assert listener.broker_ports is not None
    (published,) = re.findall(r"-p (\d+-\d+):\1 ", RUN)
    first, last = map(int, published.split("-"))
    assert [listener.bootstrap_port, *listener.broker_ports.ports] == list(range(first, last + 1))
    assert (listener.host, config.admin.host) == ("0.0.0.0", "0.0.0.0")
    assert listener.advertised_host != listener.host


def test_admin_port_is_published_on_loopback_only(config: WeirConfig) -> None:
    assert f"-p 127.0.0.1:{config.admin.port}:{config.admin.port} " in RUN
    assert len(re.findall(r"-p ", RUN)) == 2


def test_state_is_in_the_volume(config: WeirConfig) -> None:
    assert config.state.path is not None
    volume = str(Path(config.state.path).parent)
    assert VOLUMES[volume] == "weir-state"
    assert f"install -d -o weir -g weir {volume}" in DOCKERFILE


def test_container_has_time_to_drain(config: WeirConfig) -> None:
    connections = config.connections
    (seconds,) = re.findall(r"--stop-timeout (\d+)", RUN)
    assert int(seconds) > connections.drain_delay_seconds + connections.drain_seconds
