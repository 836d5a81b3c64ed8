"""A cluster with ACLs: the documented rights suffice for Weir's own user, and decide who administers quotas through Weir."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient

from gateway.commands import main
from loadtest.testkit.fleet import AUTHORIZER
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.kafka.sasl import java_properties, librdkafka_properties, sasl_listener, scram_arguments
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import ConfigTool, Outcome, wait_until_known
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "acls.md").read_text("utf-8")
RIGHTS = {
    "admin": {"Alter", "AlterConfigs"},  # Kafka includes Describe and DescribeConfigs
    "reader": {"DescribeConfigs"},
    "nobody": set[str](),
    "root": set[str](),  # a super user
}
"""The rights of each user on the cluster."""

LEDGER_TOPIC = "__weir_throttles"
NAMES = {"Topic, the name in `ledger.topic`": ("Topic", LEDGER_TOPIC), "Cluster": ("Cluster", "kafka-cluster")}
OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Alter": AclOperation.ALTER,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
}


Right = tuple[str, str, str]
"""The type and the name of a resource, and an operation."""


def documented() -> dict[str, set[Right]]:
    """The rights of each feature in the first table of the page."""
    lines = PAGE.partition("| feature |")[2].partition("\n\n")[0].splitlines()[2:]
    found: dict[str, set[Right]] = {}
    for feature, resource, operations in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        rights = found.setdefault(feature, set())
        topic = re.fullmatch(r"Topic `(.*)`", resource)
        kind, name = ("Topic", topic[1]) if topic else NAMES.get(resource, ("", ""))
        rights.update((kind, name, operation) for operation in operations.split(", ") if kind)
    return found


FEATURES = documented()
USERS = {feature: f"weir-{number}" for number, feature in enumerate(FEATURES)}
"""A user of Weir's own for each feature, so that none has the rights of another feature."""

PASSWORDS = {user: f"{user}-secret" for user in ("weir", *USERS.values(), *RIGHTS)}
ASKED_IN_ANY_CASE = "operation = DESCRIBE_CONFIGS from host = 127.0.0.1 on resource = Cluster:"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker that denies by default. The tests themselves are ANONYMOUS, a super user on the plaintext listener."""
    properties = AUTHORIZER | {
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS;User:root",
        "auto.create.topics.enable": "true",
    }
    directory = tmp_path_factory.mktemp("kafka-acls")
    listeners = [sasl_listener("SASL", PASSWORDS)]
    with KafkaCluster(
        directory, 1, properties=properties, listeners=listeners, format_arguments=scram_arguments(PASSWORDS)
    ) as running:
        for user, operations in RIGHTS.items():
            if not operations:
                continue
            grant(running, {("Cluster", "kafka-cluster", operation) for operation in operations}, user)
        yield running


def grant(cluster: KafkaCluster, rights: set[Right], user: str) -> None:
    kinds = {"Topic": ResourceType.TOPIC, "Cluster": ResourceType.BROKER}
    bindings = [
        AclBinding(
            kinds[kind], name, ResourcePatternType.LITERAL, f"User:{user}", "*", OPERATIONS[operation], AclPermissionType.ALLOW
        )
        for kind, name, operation in sorted(rights)
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_acls(bindings).values() if bindings else ():
        future.result(60)


def denials(cluster: KafkaCluster, user: str) -> list[str]:
    return re.findall(rf"Principal = User:{user} is Denied operation = \S+ .*", cluster.brokers[0].log.read_text())


def delete_own_topics(admin: AdminClient) -> None:
    """Delete the topics of the features before, so that Weir has to create its own."""
    own = [topic for topic in admin.list_topics(timeout=60).topics if topic.startswith("__weir_")]
    for future in admin.delete_topics(own).values() if own else ():
        future.result(60)
    wait_until(lambda: not set(own) & set(admin.list_topics(timeout=60).topics), "Weir's topics are deleted")


Case = tuple[dict[str, Any], Callable[[Weir], object]]
"""The part of the config that switches a feature on, and a condition that is true once the feature works."""


class Cases:
    """One case for each feature of the page. `directory` is of the test, `servers` are the brokers' without SASL."""

    def __init__(self, admin: AdminClient, servers: str, directory: Path) -> None:
        self.admin, self.servers, self.directory = admin, servers, directory

    def finding(self) -> Case:
        return {}, lambda gateway: "the cluster answers" in gateway.log()

    def quota(self) -> Case:
        """Weir counts the topics that brokers create only if it knows the brokers' configs."""

        def counts(gateway: Weir) -> bool:
            with log_in(gateway.bootstrap_servers, "root") as client:
                name = f"created-{uuid4().hex[:8]}"
                client.ask(ApiKey.METADATA, 4, {"topics": [{"name": name}], "allow_auto_topic_creation": True})
            return gateway.metric("weir_quota_partitions_total") > 0

        return {"quotas": {"entities": [{"user": "<default>", "controller_mutation_rate": 100}]}}, counts

    def topic(self) -> Case:
        other = create_topic(self.servers, f"of-clients-{uuid4().hex[:8]}")
        topics = {"topics": {"total.bytes.in.per.sec.threshold": 1_000_000}}
        return {"quotas": topics}, lambda gateway: other in [row["topic"] for row in gateway.api("topics")["rows"]]

    def disks_log_dirs(self) -> Case:
        def known(gateway: Weir) -> bool:
            volumes = gateway.api("volumes")
            return bool(volumes["volumes"]) and volumes["state"] == "OPEN" and gateway.metric("weir_volume_data_missing") == 0

        return {"quotas": {"volumes": {"publish_interval_ms": 500}}}, known

    def disks_topic(self) -> Case:
        create_topic(self.servers, "__weir_volume_usage")
        volumes = {"source": "topic", "when_unknown": "OPEN"}
        return {"quotas": {"volumes": volumes}}, lambda gateway: gateway.metric("weir_volume_connected", role="reader") == 1

    def agent(self) -> Case:
        def publishes(gateway: Weir) -> bool:
            arguments = ["volumes", "publish", "--once", "--broker-id", "0", "--path", str(self.directory)]
            command = [sys.executable, "-m", "gateway", *arguments, "--config", str(gateway.config_file)]
            published = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert published.returncode == 0, published.stderr
            return gateway.metric("weir_volume_connected", role="reader") == 1

        return {"quotas": {"volumes": {"source": "topic", "when_unknown": "OPEN"}}}, publishes

    def sharing(self) -> Case:
        def reads(gateway: Weir) -> bool:
            return (gateway.metric("weir_sharing_reachable"), gateway.metric("weir_api_quota_topic_connected")) == (1, 1)

        return {"sharing": {}}, reads

    def ledger(self) -> Case:
        def rates(limit: int) -> dict[str, Any]:
            return {"entities": [{"user": "<default>", "producer_byte_rate": limit}]}

        def has_line(gateway: Weir) -> bool:
            gateway.apply(quotas=rates(2_000_000))  # an event
            return LEDGER_TOPIC in self.admin.list_topics(timeout=60).topics

        ledger = {"path": str(self.directory / "ledger"), "topic": LEDGER_TOPIC, "flush_seconds": 1}
        return {"ledger": ledger, "quotas": rates(1_000_000)}, has_line


CHECKS = (
    Cases.finding,
    Cases.quota,
    Cases.topic,
    Cases.disks_log_dirs,
    Cases.disks_topic,
    Cases.agent,
    Cases.sharing,
    Cases.ledger,
)
"""In the order of the page."""


@pytest.mark.parametrize(("feature", "check"), list(zip(FEATURES, CHECKS, strict=True)), ids=[each.__name__ for each in CHECKS])
def test_documented_rights_suffice(cluster: KafkaCluster, tmp_path: Path, feature: str, check: Callable[[Cases], Case]) -> None:
    user, rights = USERS[feature], FEATURES[feature]
    grant(cluster, rights, user)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    delete_own_topics(admin)
    (tmp_path / "password").write_text(f"{PASSWORDS[user]}\n")
    sasl = {"mechanism": "SCRAM-SHA-512", "username": user, "password_file": str(tmp_path / "password")}
    servers = cluster.bootstrap_servers_of("SASL")
    config, works = check(Cases(admin, cluster.bootstrap_servers, tmp_path))
    with Weir(
        tmp_path / "weir", servers, {"upstream": {"bootstrap_servers": servers.split(","), "sasl": sasl}, **config}
    ) as gateway:
        wait_until(lambda: works(gateway), feature)
    asks_configs = ("Cluster", "kafka-cluster", "DescribeConfigs") in rights
    assert [denial for denial in denials(cluster, user) if asks_configs or ASKED_IN_ANY_CASE not in denial] == []


def test_missing_right_is_denied(cluster: KafkaCluster) -> None:
    """The broker logs denials, so that their absence above means something."""
    login = librdkafka_properties("SCRAM-SHA-512", "weir", PASSWORDS["weir"])
    create_topic(cluster.bootstrap_servers, "not-of-weir")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers_of("SASL"), **login})
    with pytest.raises(KafkaException, match="uthorization failed"):
        admin.delete_topics(["not-of-weir"])["not-of-weir"].result(60)
    assert wait_until(lambda: denials(cluster, "weir"), "the denial is logged")


# Quotas by the brokers' ACLs.

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
USER, SCRAM_USER = "--entity-type users --entity-name alice", "--entity-type users --entity-name dave"
COMMANDS = [
    "--describe --entity-type users",
    f"--describe {USER}",
    "--describe --entity-type clients",
    f"--alter {USER} --add-config producer_byte_rate=1024",
    f"--alter {USER} --add-config consumer_byte_rate=2048,request_percentage=50",
    f"--alter {USER} --add-config producer_byte_rate=-1",
    f"--alter {USER} --delete-config consumer_byte_rate,request_percentage,producer_byte_rate",
    f"--alter {SCRAM_USER} --add-config SCRAM-SHA-256=[password=secret]",
    f"--alter {SCRAM_USER} --delete-config SCRAM-SHA-256",
]


@pytest.fixture(scope="module")
def gateway(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway that leaves the decision to the broker."""
    directory = tmp_path_factory.mktemp("weir-broker-acls")
    (directory / "password").write_text("weir-secret\n")
    servers = cluster.bootstrap_servers_of("SASL")
    upstream = {
        "bootstrap_servers": servers.split(","),
        "sasl": {"mechanism": "SCRAM-SHA-512", "username": "weir", "password_file": "password"},
    }
    with Weir(directory, servers, {"upstream": upstream, "quota_admins": "broker_acls"}) as running:
        yield running


@pytest.fixture(scope="module")
def outcomes(
    cluster: KafkaCluster, gateway: Weir, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[Outcome, Outcome]]:
    """By user and command: the outcomes of the broker and of Weir."""
    found: dict[tuple[str, str], list[Outcome]] = {(user, command): [] for user in RIGHTS for command in COMMANDS}
    directory = tmp_path_factory.mktemp("command-config")
    with closing(ConfigTool()) as tool:
        for servers in (cluster.bootstrap_servers_of("SASL"), gateway.bootstrap_servers):
            for user, command in found:
                file = directory / user
                properties = java_properties("SCRAM-SHA-512", user, PASSWORDS[user])
                file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
                found[user, command].append(tool.run(servers, f"--command-config {file} {command}"))
                if "--alter" in command:
                    wait_until_known(cluster.bootstrap_servers)
    return {key: (direct, through) for key, (direct, through) in found.items()}


@pytest.mark.parametrize("user", RIGHTS)
def test_tool_shows_broker_decision(outcomes: dict[tuple[str, str], tuple[Outcome, Outcome]], user: str) -> None:
    for command in COMMANDS:
        direct, through = (each._replace(err=without_connection(each.err)) for each in outcomes[user, command])
        assert through == direct, command
    succeed = [command for command in COMMANDS if outcomes[user, command][1].code == "0"]
    valid = [command for command in COMMANDS if "producer_byte_rate=-1" not in command]
    # A description of users has their SCRAM credentials as well, which need Describe.
    assert succeed == {"nobody": [], "reader": ["--describe --entity-type clients"]}.get(user, valid)


def without_connection(text: str) -> str:
    """The message of a controller without the details of the connection that asked it."""
    return re.sub(r"Request\(.*\)(?= needs| is not authorized)", "Request", text)


def log_in(servers: str, user: str) -> RequestClient:
    client = RequestClient(servers)
    client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    client.ask(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": f"\0{user}\0{PASSWORDS[user]}".encode()})
    return client


def entry(rate: float = 1.0, **names: str | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in names.items()],
        "ops": [{"key": "producer_byte_rate", "value": rate, "remove": False}],
    }


def component(kind: str) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": 2, "match": None}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("user", RIGHTS)
def test_answers_equal_those_of_broker(cluster: KafkaCluster, gateway: Weir, user: str, version: int) -> None:
    entries = [entry(user="alice"), entry(user=None, ip="1.2.3.4"), entry(-1.0, client="x"), entry(-1.0, user="bob"), entry()]
    refused = [entry(user="alice"), entry(group="jobs"), entry(user="alice"), entry()]
    filters = [[], [component("user")], [component("ip"), component("user")], [component("")], [component("group")]]
    with log_in(cluster.bootstrap_servers_of("SASL"), user) as direct, log_in(gateway.bootstrap_servers, user) as through:
        values = {"entries": refused if user in {"reader", "nobody"} else entries, "validate_only": True}
        answers = [client.ask(ALTER, version, values) for client in (through, direct)]
        if user not in {"reader", "nobody"}:  # the results have the order of a Java hash table
            answers = [answer | {"entries": sorted(answer["entries"], key=str)} for answer in answers]
        assert answers[0] == answers[1]
        for components in filters if user == "nobody" else filters[:-1]:
            values = {"components": components, "strict": False}
            assert through.ask(DESCRIBE, version, values) == direct.ask(DESCRIBE, version, values)


@pytest.mark.parametrize("user", ["reader", "admin"])
def test_import_reads_brokers_and_refuses_gateway(
    cluster: KafkaCluster, gateway: Weir, user: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader may not alter, so only a description tells the two apart."""
    login, config = tmp_path / "client.properties", tmp_path / "weir.yaml"
    properties = java_properties("SCRAM-SHA-512", user, PASSWORDS[user])
    login.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    config.write_text('{upstream: {bootstrap_servers: ["127.0.0.1:9"]}, listeners: [{bootstrap_port: 1024}]}')
    arguments = ["quotas", "import", "--config", str(config), "--command-config", str(login), "--bootstrap-server"]
    assert main([*arguments, cluster.bootstrap_servers_of("SASL")]) == 0
    assert "quotas:" in capsys.readouterr().out
    assert main([*arguments, gateway.bootstrap_servers]) == 1
    assert capsys.readouterr().err.startswith("the address is that of a Weir gateway")


def test_right_counts_from_grant_to_revocation(cluster: KafkaCluster, gateway: Weir) -> None:
    """The requests of one connection follow the ACL, because Weir keeps no decision."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    acl = (
        ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:nobody", "*", AclOperation.ALTER_CONFIGS,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    with log_in(gateway.bootstrap_servers, "nobody") as client:

        def code() -> int:
            answer = client.ask(ALTER, 1, {"entries": [entry(user="alice")], "validate_only": True})
            result: int = answer["entries"][0]["error_code"]
            return result

        assert code() == 31
        for future in admin.create_acls([AclBinding(*acl)]).values():
            future.result(60)
        try:
            wait_until(lambda: code() == 0, "the ACL is granted")
        finally:
            for future in admin.delete_acls([AclBindingFilter(*acl)]).values():
                future.result(60)
        wait_until(lambda: code() == 31, "the ACL is revoked")


def test_python_clients_describe_scram_users(gateway: Weir) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "admin"}
    with closing(
        KafkaAdminClient(bootstrap_servers=gateway.bootstrap_servers, **login, sasl_plain_password=PASSWORDS["admin"])
    ) as client:
        assert set(PASSWORDS) == set(client.describe_user_scram_credentials())
    librdkafka = AdminClient(
        {"bootstrap.servers": gateway.bootstrap_servers, **librdkafka_properties("SCRAM-SHA-512", "root", PASSWORDS["root"])}
    )
    assert set(librdkafka.describe_user_scram_credentials().result(60)) == set(PASSWORDS)
