"""Quotas that move from three real brokers to Weir and back: import, shadow, enforce, lift, restore."""

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pytest
import yaml
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from gateway.commands import main
from loadtest.testkit.fleet import CLIENT_ID, RECORD_BYTES, UnpacedProducer
from loadtest.testkit.kafka import KafkaCluster, read_exactly
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import ConfigTool
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

RATE = 50_000
"""The quota of the test's producer at each broker, in bytes per second."""

BURST_SECONDS = 15
"""Brokers and Weir allow a client that was idle ten seconds of its quota at once, and the producer has requests in flight."""

Entity = tuple[tuple[str, str | None], ...]
QUOTAS: Mapping[Entity, Mapping[str, float]] = {
    (("user", "alice"),): {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6, "request_percentage": 50.0},
    # A producer that lost its own quota before this one would be muted for hours.
    (("user", None),): {"producer_byte_rate": 10.0, "consumer_byte_rate": 6e7, "controller_mutation_rate": 1000.0},
    (("user", "bob, the \u2603"),): {"controller_mutation_rate": 2.5},
    (("client-id", CLIENT_ID),): {"producer_byte_rate": 3e6, "consumer_byte_rate": 4e6},
    (("client-id", None),): {"producer_byte_rate": 7e7, "request_percentage": 400.0},
    (("user", "alice"), ("client-id", CLIENT_ID)): {"producer_byte_rate": 1e5},
    (("user", "alice"), ("client-id", None)): {"consumer_byte_rate": 2e5},
    (("user", None), ("client-id", "mirror")): {"producer_byte_rate": 3e5},
    (("user", None), ("client-id", None)): {"consumer_byte_rate": 8e7},
    (("user", "ANONYMOUS"), ("client-id", CLIENT_ID)): {"producer_byte_rate": float(RATE)},
    (("ip", "10.1.2.3"),): {"connection_creation_rate": 20.0},
    (("ip", "2001:db8::1"),): {"connection_creation_rate": 30.0},
    (("ip", "localhost"),): {"connection_creation_rate": 500.0},
    (("ip", None),): {"connection_creation_rate": 1000.0},
}
STAY = {"request_percentage": 2, "ip 'localhost'": 1}
"""The quotas that stay at the brokers, by a part of their line in the output of kafka-configs."""

DESCRIBE = [
    "--describe --entity-type users",
    "--describe --entity-type clients",
    "--describe --entity-type ips",
    "--describe --entity-type users --entity-type clients",
]


def alter(servers: str, quotas: Mapping[Entity, Mapping[str, float | None]]) -> None:
    """Set quotas, or remove quotas whose value is None, without Weir's own code."""
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
        }
        for entity, values in quotas.items()
    ]
    with RequestClient(servers) as client:
        answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": entries, "validate_only": False})
    assert {result["error_code"] for result in answer["entries"]} <= {0}


def described(servers: str) -> dict[Entity, dict[str, float]]:
    """All quotas of a broker, read without Weir's own code."""
    with RequestClient(servers) as client:
        answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})
    assert answer["error_code"] == 0
    order = ("user", "client-id", "ip")
    return {
        tuple(
            sorted(
                ((part["entity_type"], part["entity_name"]) for part in entry["entity"]), key=lambda part: order.index(part[0])
            )
        ): {each["key"]: each["value"] for each in entry["values"]}
        for entry in answer["entries"]
    }


@pytest.fixture
def quotas(kafka3: KafkaCluster) -> Iterator[Mapping[Entity, Mapping[str, float]]]:
    """Brokers with `QUOTAS`. Afterwards they have none."""
    assert sum(map(len, QUOTAS.values())) == 20
    alter(kafka3.bootstrap_servers, QUOTAS)
    everywhere(kafka3, QUOTAS)
    yield QUOTAS
    left = described(kafka3.bootstrap_servers)
    alter(kafka3.bootstrap_servers, {entity: dict.fromkeys(values) for entity, values in left.items()})
    everywhere(kafka3, {})


def everywhere(cluster: KafkaCluster, quotas: Mapping[Entity, Mapping[str, float]]) -> None:
    for node in cluster.brokers:
        wait_until(lambda node=node: described(node.address) == quotas, f"quotas of broker {node.id}")


@pytest.fixture
def scram_user(kafka3: KafkaCluster) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", credential, b"secret")]).values():
        future.result(60)
    yield "carol"
    deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(60)


def weir_config(tmp_path: Path, cluster: KafkaCluster) -> Weir:
    """A gateway that is not started. Its config has no quotas yet."""
    config = {"quotas": {"entities": []}, "quota_admins": ["User:ANONYMOUS"]}
    return Weir(tmp_path / "weir", cluster.bootstrap_servers, config)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command below `weir quotas`."""
    code = main(["quotas", *arguments])
    return (code, *capsys.readouterr())


def imported(capsys: pytest.CaptureFixture[str], gateway: Weir, cluster: KafkaCluster) -> tuple[str, dict[str, Any]]:
    """The comments of `weir quotas import`, and its section `quotas`."""
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    code, out, err = run(capsys, "import", "--config", str(gateway.config_file), *servers)
    assert (code, err) == (0, "")
    return out, yaml.safe_load(out)["quotas"]


def kafka_configs(tool: ConfigTool, servers: str) -> list[str]:
    """Quotas and SCRAM users as kafka-configs describes them. Values of one entity have the order of a hash table."""
    lines = []
    for arguments in DESCRIBE:
        outcome = tool.run(servers, arguments)
        assert outcome.code == "0", outcome.err
        for line in outcome.out.splitlines():
            entity, _, values = line.partition(" are ")
            lines.append(f"{arguments}: {entity} are {', '.join(sorted(values.split(', ')))}")
    return lines


def test_twenty_quotas_move_to_weir_and_back(
    kafka3: KafkaCluster, quotas: Mapping[Entity, Mapping[str, float]], scram_user: str, tmp_path: Path, capsys
) -> None:
    servers = ["--bootstrap-server", kafka3.bootstrap_servers]
    topic = create_topic(kafka3.bootstrap_servers, f"moving-{uuid4().hex[:8]}", partitions=3)
    gateway = weir_config(tmp_path, kafka3)
    config = ["--config", str(gateway.config_file), *servers]
    saved = tmp_path / "restore.json"
    with closing(ConfigTool()) as tool:
        before = kafka_configs(tool, kafka3.bootstrap_servers)
        assert sum(scram_user in line for line in before) == 1

        comments, section = imported(capsys, gateway, kafka3)
        assert "17 added, 0 changed, 0 the same, 0 only in the config" in comments
        gateway.config["quotas"] = section | {"enforce": False, "window": {"samples": 2, "seconds": 1}}
        gateway.write_config(gateway.config)
        assert main(["check", "--config", str(gateway.config_file)]) == 0
        capsys.readouterr()
        limits = {json.dumps({**row, "producer_byte_rate": 0}): row.get("producer_byte_rate") for row in section["entities"]}
        assert limits[json.dumps({"user": "ANONYMOUS", "client-id": CLIENT_ID, "producer_byte_rate": 0})] == 3 * RATE

        with gateway, closing(UnpacedProducer(gateway.bootstrap_servers, topic)) as producer:
            begun = time.monotonic()

            def within_limit() -> None:
                """The producer's bytes since its start. A second without a quota would be more than the whole burst."""
                most = 3 * RATE * (time.monotonic() - begun + BURST_SECONDS)
                assert producer.acknowledged * RECORD_BYTES <= most

            wait_until(lambda: gateway.metric("weir_throttled_requests_total", client_id=CLIENT_ID) > 0, "Weir sees the excess")
            assert "17 the same" in imported(capsys, gateway, kafka3)[0]

            code, _, why = run(capsys, "lift", *config, "--restore-file", str(saved), "--yes")
            assert (code, saved.exists()) == (1, False)
            assert "quotas.enforce is false" in why
            within_limit()

            # A file that the gateway has not loaded is not enough with --admin.
            enforced = gateway.config["quotas"] | {"enforce": True}
            other = tmp_path / "enforced.yaml"
            other.write_text(yaml.safe_dump(gateway.config | {"quotas": enforced}))
            admin = ["--admin", gateway.admin, "--restore-file", str(saved)]
            code, _, why = run(capsys, "lift", "--config", str(other), *admin, "--yes")
            assert (code, saved.exists()) == (1, False)
            assert f"the gateway at {gateway.admin} (config version 1): quotas.enforce is false" in why

            gateway.apply(quotas=enforced)
            code, out, _ = run(capsys, "lift", *config, *admin, "--dry-run")
            assert code == 0
            assert "dry run" in out
            assert not saved.exists()
            assert kafka_configs(tool, kafka3.bootstrap_servers) == before

            code, out, why = run(capsys, "lift", *config, *admin, "--yes")
            assert (code, why) == (0, "")
            after = kafka_configs(tool, kafka3.bootstrap_servers)
            assert [sum(part in line for line in after) for part in STAY] == list(STAY.values())
            assert sum("Quota configs" in line for line in after) == sum(STAY.values())
            assert sum(scram_user in line for line in after) == 1
            throttled = gateway.metric("weir_throttled_requests_total", client_id=CLIENT_ID)
            wait_until(
                lambda: gateway.metric("weir_throttled_requests_total", client_id=CLIENT_ID) > throttled, "Weir throttles alone"
            )
            within_limit()

            code, out, _ = run(capsys, "lift", *config, "--restore-file", str(saved), "--yes")
            assert (code, out.splitlines()[-1]) == (0, "nothing to lift")

            code, out, why = run(capsys, "restore", str(saved), "--bootstrap-server", gateway.bootstrap_servers, "--force")
            assert (code, out) == (1, "")
            assert why.startswith("the address is that of a Weir gateway")

            # A gateway of another config file: its address alone does not show that it is Weir's.
            elsewhere = tmp_path / "elsewhere.yaml"
            elsewhere.write_text(yaml.safe_dump(gateway.config | {"listeners": [{"bootstrap_port": 1024}]}))
            through = ["--config", str(elsewhere), "--bootstrap-server", gateway.bootstrap_servers]
            code, out, why = run(capsys, "lift", *through, "--restore-file", str(tmp_path / "other.json"), "--yes")
            assert (code, out) == (1, "")
            assert why.startswith("the address is that of a Weir gateway")

            code, out, why = run(capsys, "restore", str(saved), "--dry-run")
            assert (code, why) == (0, "")
            assert kafka_configs(tool, kafka3.bootstrap_servers) == after
            code, out, why = run(capsys, "restore", str(saved))
            assert (code, why) == (0, "")
            assert kafka_configs(tool, kafka3.bootstrap_servers) == before
            everywhere(kafka3, quotas)
            code, out, _ = run(capsys, "restore", str(saved))
            assert (code, out.splitlines()[-1]) == (0, "nothing to restore: the brokers have all quotas of the file")
            within_limit()


def config_with_quotas(gateway: Weir, cluster: KafkaCluster, capsys) -> None:
    gateway.config["quotas"] = imported(capsys, gateway, cluster)[1]
    gateway.write_config(gateway.config)


def test_figures_of_single_brokers_move_unchanged(
    kafka3: KafkaCluster, quotas: Mapping[Entity, Mapping[str, float]], tmp_path: Path, capsys
) -> None:
    """`quotas.scope: broker`, with the brokers' own figures on both sides."""
    gateway, saved = weir_config(tmp_path, kafka3), tmp_path / "restore.json"
    alice, scope = (("user", "alice"),), {"scope": "broker"}
    gateway.config["quotas"] = scope
    gateway.write_config(gateway.config)
    comments, section = imported(capsys, gateway, kafka3)
    assert "17 added, 0 changed, 0 the same, 0 only in the config" in comments
    assert "The figures stay the same." in comments
    figures = {key: value for key, value in quotas[alice].items() if key != "request_percentage"}
    assert {"user": "alice", **figures} in section["entities"]

    gateway.config["quotas"] = section  # without the scope, each figure is a third of the brokers' together
    gateway.write_config(gateway.config)
    assert "0 added, 15 changed, 2 the same" in imported(capsys, gateway, kafka3)[0]
    gateway.config["quotas"] = {**scope, "entities": [dict(row) for row in section["entities"]]}
    gateway.write_config(gateway.config)
    assert "17 the same" in imported(capsys, gateway, kafka3)[0]

    arguments = ["--config", str(gateway.config_file), "--restore-file", str(saved), "--yes"]
    first = next(row for row in gateway.config["quotas"]["entities"] if row.get("user") == "alice")
    first["producer_byte_rate"] += 1
    gateway.write_config(gateway.config)
    code, _, why = run(capsys, "lift", *arguments)
    assert (code, saved.exists()) == (1, False)
    assert "allows 1000001, and the brokers allow 1000000 (1000000 at each broker) — lower it" in why
    first["producer_byte_rate"] -= 1
    gateway.write_config(gateway.config)
    assert run(capsys, "lift", *arguments)[0] == 0
    assert sum(map(len, described(kafka3.bootstrap_servers).values())) == sum(STAY.values())
    assert run(capsys, "restore", str(saved))[0] == 0
    everywhere(kafka3, quotas)


def test_restore_refuses_quotas_that_were_changed_since(
    kafka3: KafkaCluster, quotas: Mapping[Entity, Mapping[str, float]], tmp_path: Path, capsys
) -> None:
    gateway, saved = weir_config(tmp_path, kafka3), tmp_path / "restore.json"
    config_with_quotas(gateway, kafka3, capsys)
    config = ["--config", str(gateway.config_file), "--restore-file", str(saved)]  # the brokers are those of the config
    assert run(capsys, "lift", *config, "--yes")[0] == 0
    alice, new = (("user", "alice"),), (("user", "new"),)
    since = {alice: {"producer_byte_rate": 7.0, "request_percentage": 51.0}, new: {"consumer_byte_rate": 8.0}}
    left = described(kafka3.bootstrap_servers) | since
    alter(kafka3.bootstrap_servers, since)
    everywhere(kafka3, left)

    code, out, why = run(capsys, "restore", str(saved))
    assert code == 1
    assert "user=alice: producer_byte_rate is 7, and the file has 1000000" in why
    assert "user=new: consumer_byte_rate 8 has been added since the lift; it stays" in why
    assert "note: user=alice: request_percentage has been changed since the lift from 50 to 51; it stays" in out
    assert described(kafka3.bootstrap_servers) == left

    assert run(capsys, "restore", str(saved), "--force")[0] == 0
    expected = {**quotas, alice: {**quotas[alice], "request_percentage": 51.0}, new: {"consumer_byte_rate": 8.0}}
    everywhere(kafka3, expected)

    other = tmp_path / "other.json"
    other.write_text(re.sub(r'("cluster_id": ")', r"\1not-", saved.read_text()))
    code, _, why = run(capsys, "restore", str(other))
    assert code == 1
    assert f"{other}: is of the cluster not-" in why


def test_the_brokers_refusal_is_shown(kafka3: KafkaCluster, tmp_path: Path, capsys) -> None:
    """A host that DNS no longer has. The brokers check all quotas before the first is set."""
    saved = tmp_path / "restore.json"
    metadata = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers}).list_topics(timeout=60)
    lifted = [
        {"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1.0}},
        {"entity": {"ip": "nowhere.invalid"}, "quotas": {"connection_creation_rate": 1.0}},
    ]
    content = {"format": "weir-quotas-restore", "version": 1, "written_at": "", "cluster_id": metadata.cluster_id, "kept": []}
    saved.write_text(json.dumps({**content, "bootstrap_servers": [kafka3.brokers[0].address], "lifted": lifted}))
    code, _, why = run(capsys, "restore", str(saved))
    assert code == 1
    assert why.startswith("the brokers refuse the request: ")
    assert "ip=nowhere.invalid: nowhere.invalid is not a valid IP or resolvable host." in why
    assert "unreadable" not in why
    assert described(kafka3.bootstrap_servers) == {}


class LosingProxy:
    """A proxy to a broker that loses the connection at the n-th AlterClientQuotas, before or after the broker's answer."""

    def __init__(self, target: str, lost: int, *, forward: bool) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._lost, self._forward = lost, forward
        self._seen = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Weir's own client sends its requests one after the other."""
        with client, socket.create_connection(self._target) as broker, suppress(OSError, EOFError):
            while True:
                request = frame(client)
                alters = struct.unpack_from(">h", request, 4) == (ApiKey.ALTER_CLIENT_QUOTAS,)
                self._seen += alters
                lost = alters and self._seen == self._lost
                if not lost or self._forward:
                    broker.sendall(request)
                    answer = frame(broker)
                if lost:
                    return
                client.sendall(answer)


def frame(connection: socket.socket) -> bytes:
    size = read_exactly(connection, 4)
    return size + read_exactly(connection, struct.unpack(">i", size)[0])


@pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "request lost"])
def test_a_lift_that_fails_leaves_a_restore_file_that_works(
    kafka3: KafkaCluster, quotas: Mapping[Entity, Mapping[str, float]], tmp_path: Path, capsys, forward: bool
) -> None:
    gateway, saved = weir_config(tmp_path, kafka3), tmp_path / "restore.json"
    config_with_quotas(gateway, kafka3, capsys)
    asked_before = 3  # twice if this is a gateway, and once to check the removal
    with LosingProxy(kafka3.brokers[0].address, asked_before + 1, forward=forward) as proxy:
        arguments = ["--bootstrap-server", proxy.address, "--config", str(gateway.config_file), "--restore-file", str(saved)]
        code, _, why = run(capsys, "lift", *arguments, "--yes")
        assert proxy._seen == asked_before + 1
    assert code == 1
    assert f"some quotas may be gone: `weir quotas restore {saved}` puts them back" in why
    for node in kafka3.brokers if forward else ():
        wait_until(lambda node=node: described(node.address) != quotas, "the first quotas are removed")
    assert forward or described(kafka3.bootstrap_servers) == quotas
    code, _, why = run(capsys, "restore", str(saved), "--bootstrap-server", kafka3.bootstrap_servers)
    assert (code, why) == (0, "")
    everywhere(kafka3, quotas)
