"""The sdist, the wheel that is built from it, and `weir` as the wheel installs it, in an empty folder."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from loadtest.testkit.installation import Installation
from loadtest.testkit.kafka import KafkaCluster, free_port_range, spawn
from loadtest.testkit.paths import CHECKOUT
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import produce
from tests.broker.topics import create_topic
from tests.weir_process import Weir

pytestmark = pytest.mark.broker

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(CHECKOUT)]
    done = subprocess.run(command, env=Installation.environment(), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return Built(*out.glob("*.tar.gz"), *out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(built.wheel, tmp_path_factory.mktemp("installed") / "venv")


class InstalledWeir(Weir):
    """A gateway of an installation, whose working directory is that of its config file."""

    def __init__(self, installation: Installation, directory: Path, upstream: str, config: dict[str, Any]) -> None:
        super().__init__(directory, upstream, config)
        self._installation = installation

    def launch(self) -> None:
        command = self._installation.command("serve", "--config", self.config_file.name)
        with self.log_file.open("a") as log:
            folder, environ = self.config_file.parent, self._installation.environment()
            self.process = spawn(command, stdout=log, stderr=log, cwd=folder, env=environ)


def test_sdist_has_sources_and_backend_only(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert {"pyproject.toml", ".ci/build_backend.py", "LICENSE", "README.md", "helm/systemd/weir.service"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {
        "gateway", "protocol", "helm", ".ci", "weir_gateway.egg-info",
    }  # fmt: skip


def test_wheel_has_all_files_of_the_packages(built: Built) -> None:
    assert built.wheel.name == f"weir_gateway-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(file.relative_to(CHECKOUT))
        for package in ("gateway", "protocol")
        for file in (CHECKOUT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in names if ".dist-info/" not in name and ".data/" not in name} == sources
    assert f"weir_gateway-{VERSION}.data/data/share/weir/weir.service" in names


def test_commands_work_in_an_empty_folder(installed: Installation, tmp_path: Path) -> None:
    assert installed.run("--version", folder=tmp_path).stdout == f"weir {VERSION} (interpreted)\n"
    help_text = installed.run("report", "--help", folder=tmp_path)
    assert (help_text.returncode, help_text.stderr) == (0, "")
    port = free_port_range(3)
    (tmp_path / "weir.yaml").write_text(
        f'upstream: {{bootstrap_servers: ["127.0.0.1:{port + 2}"]}}\n'
        f"listeners: [{{name: clients, bootstrap_port: {port}, broker_ports: {port + 1}-{port + 1}}}]\n"
        'quotas: {entities: [{user: "<default>", producer_byte_rate: 1048576}]}\n'
    )
    checked = installed.run("check", "--config", "weir.yaml", folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert "weir.yaml: valid" in checked.stdout


def test_installed_gateway_throttles_and_shows_its_page(kafka: KafkaCluster, installed: Installation, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"installed-{uuid4().hex[:8]}", partitions=1)
    quotas = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "producer_byte_rate": 1_000}]}
    with InstalledWeir(installed, tmp_path, kafka.bootstrap_servers, {"quotas": quotas}) as gateway:
        with RequestClient(gateway.bootstrap_servers, "etl") as client:
            assert produce(client, topic) > 0
        assert "<html" in gateway.get("/")
        assert gateway.metric("weir_throttled_requests_total", client_id="etl") == 1
