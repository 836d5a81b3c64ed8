"""`weir init` against real brokers: its file passes `weir check`, and a gateway serves with it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from gateway.config.load import load_config
from loadtest.testkit.kafka import KafkaCluster, free_port, run_tool, stop
from loadtest.testkit.kafka.sasl import java_properties, librdkafka_properties, sasl_listener, scram_arguments
from tests.broker.test_moving_quotas import alter, everywhere
from tests.broker.topics import create_topic
from tests.weir_process import wait_until

pytestmark = pytest.mark.broker

CONFIGS = "kafka.admin.ConfigCommand"
COPIED = (("user", "copied"),)
PASSWORDS = {"weir": "weir-secret", "alice": "alice-secret"}


def weir(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False, timeout=120)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker with a SASL listener beside the plaintext one."""
    directory = tmp_path_factory.mktemp("kafka-init")
    listeners = [sasl_listener("SASL", PASSWORDS)]
    with KafkaCluster(directory, 1, listeners=listeners, format_arguments=scram_arguments(PASSWORDS)) as running:
        yield running


def properties_file(folder: Path, password: str) -> Path:
    path = folder / "client.properties"
    settings = java_properties("SCRAM-SHA-512", "weir", password)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def test_file_passes_check(kafka3: KafkaCluster, tmp_path: Path) -> None:
    server = kafka3.bootstrap_servers.split(",")[0]
    made = weir("init", "--bootstrap-server", server, folder=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "with brokers 0, 1, 2" in made.stdout
    checked = weir("check", "--config", "weir.yaml", folder=tmp_path)
    assert checked.returncode == 0
    assert "weir.yaml: valid: clients on 127.0.0.1:" in checked.stdout
    servers = {str(each) for each in load_config(tmp_path / "weir.yaml").upstream.bootstrap_servers}
    assert servers == set(kafka3.bootstrap_servers.split(","))


def test_file_is_never_overwritten(kafka: KafkaCluster, tmp_path: Path) -> None:
    (tmp_path / "weir.yaml").write_text("mine")
    made = weir("init", "--bootstrap-server", kafka.bootstrap_servers, folder=tmp_path)
    assert made.returncode == 1
    assert made.stderr.startswith("weir.yaml: exists, and init overwrites no file — ")
    assert (tmp_path / "weir.yaml").read_text() == "mine"


def test_gateway_serves_with_the_file(secure: KafkaCluster, tmp_path: Path) -> None:
    """With SASL: Weir logs in as `weir`, and a client as `alice`."""
    properties_file(tmp_path, PASSWORDS["weir"])
    run_tool(
        CONFIGS, "--bootstrap-server", secure.bootstrap_servers, "--alter", "--entity-type", "users",
        "--entity-name", "alice", "--add-config", "producer_byte_rate=1048576",
    )  # fmt: skip
    server = secure.bootstrap_servers_of("SASL")
    made = weir("init", "--bootstrap-server", server, "--command-config", "client.properties", folder=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "weir quotas import --config weir.yaml" in made.stdout
    secret = tmp_path / "weir.password"
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("weir-secret\n", 0o600)
    assert "secret" not in (tmp_path / "weir.yaml").read_text()
    port = load_config(tmp_path / "weir.yaml").listeners[0].bootstrap_port
    topic = create_topic(secure.bootstrap_servers, f"init-{port}")
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "gateway", "serve", "--config", "weir.yaml"]
        process = subprocess.Popen(command, cwd=tmp_path, env=_environment(), stderr=log, text=True)
        try:
            client = {
                "bootstrap.servers": f"127.0.0.1:{port}",
                **librdkafka_properties("SCRAM-SHA-512", "alice", PASSWORDS["alice"]),
            }
            wait_until(lambda: _answers(port), "the gateway listens")
            assert topic in AdminClient(client).list_topics(timeout=60).topics
            producer = Producer(client)
            failures: list[object] = []
            producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(60) == 0
            assert failures == [None]
        finally:
            stop(process, timeout=30.0)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't be read"),
        ("security.protocol=SASL_SSLL\n", "security.protocol is 'SASL_SSLL'"),
        ("ssl.truststore.location=a.jks\nsecurity.protocol=SSL\n", "Weir reads PEM only"),
    ],
)
def test_bad_properties_are_refused(kafka: KafkaCluster, tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "client.properties").write_text(content)
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--command-config", "client.properties"]
    made = weir("init", *arguments, folder=tmp_path)
    assert (made.returncode, made.stdout) == (1, "")
    assert words in made.stderr
    assert len(made.stderr.splitlines()) == 1
    assert not (tmp_path / "weir.yaml").exists()


def test_wrong_password_is_refused(secure: KafkaCluster, tmp_path: Path) -> None:
    properties_file(tmp_path, "wrong")
    server = secure.bootstrap_servers_of("SASL")
    made = weir("init", "--bootstrap-server", server, "--command-config", "client.properties", folder=tmp_path)
    assert made.returncode == 1
    assert "the brokers refuse the user weir with SCRAM-SHA-512" in made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client.properties"]


def test_unreachable_broker_is_refused(tmp_path: Path) -> None:
    made = weir("init", "--bootstrap-server", f"127.0.0.1:{free_port()}", folder=tmp_path)
    assert made.returncode == 1
    assert "can't be reached: Connection refused — check --bootstrap-server" in made.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def copied(kafka3: KafkaCluster) -> Iterator[None]:
    """A quota at all brokers. It is removed at the end, because other tests use the same brokers."""
    alter(kafka3.bootstrap_servers, {COPIED: {"producer_byte_rate": 1_048_576.0}})
    everywhere(kafka3, {COPIED: {"producer_byte_rate": 1_048_576.0}})
    yield
    alter(kafka3.bootstrap_servers, {COPIED: {"producer_byte_rate": None}})
    everywhere(kafka3, {})


@pytest.mark.usefixtures("copied")
def test_copied_rate_is_found_at_the_brokers(kafka3: KafkaCluster, tmp_path: Path) -> None:
    servers = ", ".join(f'"{server}"' for server in kafka3.bootstrap_servers.split(","))
    row = "{user: copied, producer_byte_rate: 1048576}"
    (tmp_path / "weir.yaml").write_text(
        f"upstream: {{bootstrap_servers: [{servers}]}}\nlisteners: [{{bootstrap_port: 1024}}]\nquotas: {{entities: [{row}]}}\n"
    )
    checked = weir("check", "--config", "weir.yaml", "--brokers", folder=tmp_path)
    assert checked.returncode == 0
    assert "warning: quotas.entities[0].producer_byte_rate: 1048576 is also the rate at the brokers" in checked.stdout
    assert "write 3145728" in checked.stdout
