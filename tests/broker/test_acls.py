"""The rights in docs/reference/acls.md suffice for Weir's own user: each feature works, and no request is denied."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from loadtest.testkit.fleet import AUTHORIZER
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.kafka.sasl import librdkafka_properties, sasl_listener, scram_arguments
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "acls.md").read_text("utf-8")
PASSWORDS = {"weir": "weir-secret"}
LEDGER_TOPIC = "__weir_throttles"
NAMES = {"Topic, the name in `ledger.topic`": ("Topic", LEDGER_TOPIC), "Cluster": ("Cluster", "kafka-cluster")}
OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


def documented() -> set[tuple[str, str, str]]:
    """(type, name, operation) of each right in the first table of the page."""
    rows = re.findall(r"(?m)^\| (.*?) \| (.*?) \| (.*?) \|$", PAGE.partition("| feature |")[2].partition("\n\n")[0])
    found = set()
    for _, resource, operations in rows:
        topic = re.fullmatch(r"Topic `(.*)`", resource)
        kind, name = ("Topic", topic[1]) if topic else NAMES.get(resource, ("", ""))
        found.update((kind, name, operation) for operation in operations.split(", ") if kind)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker that denies by default. The tests themselves are ANONYMOUS, a super user on the plaintext listener."""
    properties = AUTHORIZER | {"allow.everyone.if.no.acl.found": "false", "super.users": "User:ANONYMOUS"}
    directory = tmp_path_factory.mktemp("kafka-acls")
    listeners = [sasl_listener("SASL", PASSWORDS)]
    with KafkaCluster(
        directory, 1, properties=properties, listeners=listeners, format_arguments=scram_arguments(PASSWORDS)
    ) as running:
        yield running


def grant(cluster: KafkaCluster, rights: set[tuple[str, str, str]]) -> None:
    kinds = {"Topic": ResourceType.TOPIC, "Cluster": ResourceType.BROKER}
    bindings = [
        AclBinding(
            kinds[kind], name, ResourcePatternType.LITERAL, "User:weir", "*", OPERATIONS[operation], AclPermissionType.ALLOW
        )
        for kind, name, operation in sorted(rights)
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_acls(bindings).values():
        future.result(60)


def denials(cluster: KafkaCluster) -> list[str]:
    return re.findall(r"Principal = User:weir is Denied operation = \S+ .*", cluster.brokers[0].log.read_text())


def test_documented_rights_suffice(cluster: KafkaCluster, tmp_path: Path) -> None:
    rights = documented()
    assert ("Cluster", "kafka-cluster", "Describe") in rights
    assert ("Topic", LEDGER_TOPIC, "Write") in rights
    grant(cluster, rights)
    other = create_topic(cluster.bootstrap_servers, f"of-clients-{uuid4().hex[:8]}")
    (tmp_path / "password").write_text("weir-secret\n")
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "weir", "password_file": str(tmp_path / "password")}
    servers = cluster.bootstrap_servers_of("SASL")
    config = {
        "upstream": {"bootstrap_servers": servers.split(","), "sasl": sasl},
        "sharing": {},
        "ledger": {"path": str(tmp_path / "ledger"), "topic": LEDGER_TOPIC, "flush_seconds": 1},
        "quotas": {
            "entities": [{"user": "<default>", "controller_mutation_rate": 100, "producer_byte_rate": 1_000_000}],
            "topics": {"total.bytes.in.per.sec.threshold": 1_000_000},
            "volumes": {"publish_interval_ms": 500},
        },
    }
    with Weir(tmp_path / "weir", servers, config) as gateway:
        wait_until(lambda: gateway.metric("weir_sharing_reachable") == 1, "the usage topic is read")
        wait_until(lambda: gateway.metric("weir_api_quota_topic_connected") == 1, "the quotas' topic is read")
        wait_until(lambda: gateway.api("volumes")["volumes"], "the disks are known")
        wait_until(lambda: other in [row["topic"] for row in gateway.api("topics")["rows"]], "the topics are known")
        gateway.apply(
            quotas={"entities": [{"user": "<default>", "producer_byte_rate": 2_000_000}], "volumes": {"source": "topic"}}
        )
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        wait_until(lambda: LEDGER_TOPIC in admin.list_topics(timeout=60).topics, "the ledger's topic is there")
        arguments = ["volumes", "publish", "--once", "--broker-id", "0", "--path", str(tmp_path)]
        published = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments, "--config", str(gateway.config_file)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert published.returncode == 0, published.stderr
        wait_until(lambda: gateway.metric("weir_volume_connected", role="reader") == 1, "the volumes' topic is read")
    assert denials(cluster) == []


def test_missing_right_is_denied(cluster: KafkaCluster) -> None:
    """The broker logs denials, so that their absence above means something."""
    login = librdkafka_properties("SCRAM-SHA-512", "weir", PASSWORDS["weir"])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers_of("SASL"), **login})
    with pytest.raises(KafkaException, match="uthorization failed"):
        admin.delete_topics(["__weir_usage"])["__weir_usage"].result(60)
    assert wait_until(lambda: denials(cluster), "the denial is logged")
