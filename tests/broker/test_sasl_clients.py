"""Users by SASL, with real brokers and clients: quotas by user, refusals, re-authentication, unauthenticated clients."""

import base64
import hashlib
import hmac
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from prometheus_client.parser import text_string_to_metric_families

from gateway.commands import main
from loadtest.scenarios import reauthentication
from loadtest.testkit.certificates import LOOPBACK, Authority, Files
from loadtest.testkit.kafka import KafkaCluster, run_tool
from loadtest.testkit.kafka.sasl import (
    MECHANISMS,
    java_properties,
    librdkafka_properties,
    sasl_listener,
    scram_arguments,
    unsecured_token,
)
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.sasl_clients import CLIENTS, with_librdkafka
from tests.broker.test_malformed_requests import METADATA, read_answer, read_to_end, request
from tests.broker.topics import create_topic
from tests.gateway.proxy import messages as m
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

PASSWORDS = reauthentication.PASSWORDS | {"bob": "bob-password"}
JAVA = Path(__file__).with_name("SaslClients.java")
SECONDS_TO_BE_APPLIED = 120.0
MAX_REAUTH_MS = 20_000
"""Clients re-authenticate after 85 to 95 % of this. So a stall of a second costs none of them its connection."""
DEFAULT_RATE, ALICE_RATE, QUOTA_KEY = 10_000_000, 20_000_000, "producer_byte_rate"
QUOTAS = {
    "window": {"samples": 2, "seconds": 1},
    "entities": [
        {"user": "alice", QUOTA_KEY: ALICE_RATE},
        {"user": "<default>", QUOTA_KEY: DEFAULT_RATE},
        {"user": "weir", "exempt": True},
    ],
    "groups": [{"name": "payments", "match": [{"claim": {"scope": "payments"}}], QUOTA_KEY: DEFAULT_RATE}],
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Files:
    """The certificate of the broker and of Weir."""
    return authority.issue("both", hosts=LOOPBACK)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificate: Files) -> Iterator[KafkaCluster]:
    """A broker with SASL listeners: one in plaintext, one with TLS, and one with short sessions."""
    keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate.both)}
    listeners = [
        sasl_listener("SASL", PASSWORDS),
        sasl_listener("SECURE", PASSWORDS, security_protocol="SASL_SSL", properties=keystore),
        sasl_listener(reauthentication.LISTENER, PASSWORDS, max_reauth_ms=MAX_REAUTH_MS),
    ]
    directory = tmp_path_factory.mktemp("kafka-sasl")
    # On a busy machine, the controller would fence a broker that stalls for nine seconds, and clients would lose it.
    patient = {"broker.session.timeout.ms": "60000"}
    with KafkaCluster(directory, 1, patient, listeners, scram_arguments(PASSWORDS)) as running:
        yield running


def credentials(directory: Path, password: str = PASSWORDS["weir"]) -> dict[str, str]:
    (directory / "password").write_text(password + "\n")
    return {"mechanism": "SCRAM-SHA-512", "username": "weir", "password_file": "password"}  # relative to the config file


def gateway_before(
    servers: str, directory: Path, upstream_sasl: dict[str, str] | None, tls: dict[str, str] | None = None, **more: Any
) -> Weir:
    upstream: dict[str, Any] = {"bootstrap_servers": [servers]}
    upstream |= {"sasl": upstream_sasl} if upstream_sasl else {}
    upstream |= {"tls": tls} if tls else {}
    return Weir(directory, servers, {"upstream": upstream, "quotas": QUOTAS}, **more)


@pytest.fixture(scope="module")
def gateway(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    directory = tmp_path_factory.mktemp("weir-sasl")
    with gateway_before(cluster.bootstrap_servers_of("SASL"), directory, credentials(directory)) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: KafkaCluster) -> str:
    return create_topic(cluster.bootstrap_servers, f"sasl-{uuid4().hex[:8]}", partitions=1)


def authenticated(gateway: Weir, mechanism: str) -> float:
    return gateway.metric("weir_authentications_total", mechanism=mechanism)


def usage(gateway: Weir, user: str) -> dict[str, Any] | None:
    rows = [row for row in gateway.api("quotas")["rows"] if row["user"] == user and row["kind"] == "produce"]
    return rows[0] if rows else None


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_each_mechanism_works_with_each_client(gateway: Weir, topic: str, client: str, mechanism: str) -> None:
    before = usage(gateway, "alice")
    succeeded = authenticated(gateway, mechanism)
    assert CLIENTS[client](gateway.bootstrap_servers, topic, mechanism, "alice", PASSWORDS["alice"]) is None
    assert authenticated(gateway, mechanism) > succeeded
    after = usage(gateway, "alice")
    assert after is not None
    assert after["amount_total"] > (before["amount_total"] if before else 0)
    assert (after["level"], after["limit"], after["client_id"]) == ("user=alice", ALICE_RATE, "")
    assert usage(gateway, "ANONYMOUS") is None


def test_claim_of_a_token_puts_its_client_into_a_group(gateway: Weir, topic: str) -> None:
    def used() -> int:
        rows = [row for row in gateway.api("quotas")["rows"] if (row["group"], row["kind"]) == ("payments", "produce")]
        return sum(row["amount_total"] for row in rows)

    amounts = [used()]
    for scope in ("orders", "orders,payments"):
        properties = librdkafka_properties("OAUTHBEARER", "carol", "")
        properties["sasl.oauthbearer.config"] = f"principal=carol scope={scope}"
        producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, **properties})
        producer.produce(topic, bytes(1_000))
        assert producer.flush(30) == 0
        amounts.append(used())
        users = {row["user"] for row in gateway.api("connections?group=payments")["rows"]}
        assert users == ({"carol"} if "payments" in scope else set())
    assert amounts[0] == amounts[1] < amounts[2]


def test_each_mechanism_works_with_java(gateway: Weir, topic: str) -> None:
    before = {mechanism: authenticated(gateway, mechanism) for mechanism in MECHANISMS}
    arguments = [
        argument
        for mechanism in MECHANISMS
        for argument in (mechanism, java_properties(mechanism, "bob", PASSWORDS["bob"])["sasl.jaas.config"])
    ]
    wrong = ("SCRAM-SHA-256", java_properties("SCRAM-SHA-256", "mallory", "wrong")["sasl.jaas.config"])
    lines = run_tool(JAVA, gateway.bootstrap_servers, topic, "", *arguments, *wrong).splitlines()
    refused = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert lines == [*(f"SENT {mechanism}" for mechanism in MECHANISMS), f"FAILED SaslAuthenticationException: {refused}"]
    assert all(authenticated(gateway, mechanism) > count for mechanism, count in before.items())
    bob = usage(gateway, "bob")
    assert bob is not None
    assert (bob["level"], bob["limit"]) == ("user=<default>", DEFAULT_RATE)
    assert usage(gateway, "mallory") is None


@pytest.fixture(scope="module")
def secure_gateway(
    cluster: KafkaCluster, authority: Authority, certificate: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Weir]:
    """A gateway with TLS on both sides."""
    directory = tmp_path_factory.mktemp("weir-sasl-ssl")
    upstream_tls = {"ca": str(authority.cert)}
    listener = {"tls": {"cert": str(certificate.cert), "key": str(certificate.key)}}
    servers = cluster.bootstrap_servers_of("SECURE")
    with gateway_before(servers, directory, credentials(directory), upstream_tls, listener=listener) as running:
        yield running


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_each_mechanism_works_with_each_client_over_tls(
    secure_gateway: Weir, authority: Authority, topic: str, client: str, mechanism: str
) -> None:
    succeeded = authenticated(secure_gateway, mechanism)
    servers = secure_gateway.bootstrap_servers
    assert CLIENTS[client](servers, topic, mechanism, "alice", PASSWORDS["alice"], authority.cert) is None
    assert authenticated(secure_gateway, mechanism) > succeeded
    alice = usage(secure_gateway, "alice")
    assert alice is not None
    assert (alice["level"], alice["limit"]) == ("user=alice", ALICE_RATE)


def test_each_mechanism_works_with_java_over_tls(secure_gateway: Weir, authority: Authority, topic: str) -> None:
    arguments = [
        argument
        for mechanism in MECHANISMS
        for argument in (mechanism, java_properties(mechanism, "bob", PASSWORDS["bob"])["sasl.jaas.config"])
    ]
    lines = run_tool(JAVA, secure_gateway.bootstrap_servers, topic, str(authority.cert), *arguments).splitlines()
    assert lines == [f"SENT {mechanism}" for mechanism in MECHANISMS]
    assert usage(secure_gateway, "bob") is not None


def is_described(admin: AdminClient, user: str) -> bool:
    """Return True if the broker has a password of this user."""
    try:
        return bool(admin.describe_user_scram_credentials([user])[user].result(60).scram_credential_infos)
    except KafkaException:
        return False


def test_user_name_that_scram_escapes_has_its_quota(cluster: KafkaCluster, gateway: Weir, topic: str) -> None:
    user, password = "a,b=c", "comma-password"
    credential = UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password.encode())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.alter_user_scram_credentials([credential])[user].result(60)
    # The controller has confirmed the user, and the broker learns of it a little later.
    wait_until(lambda: is_described(admin, user), "the broker knows the user")
    assert with_librdkafka(gateway.bootstrap_servers, topic, "SCRAM-SHA-256", user, password) is None
    assert usage(gateway, user) is not None


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])  # kafka-python retries for ever, and Java is tested above
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_password_is_refused_as_by_the_broker(
    cluster: KafkaCluster, gateway: Weir, topic: str, client: str, mechanism: str
) -> None:
    user = f"nobody-{client}-{mechanism}"
    failed = gateway.metric("weir_authentication_failures_total", reason="refused")
    succeeded = authenticated(gateway, mechanism)
    directly = CLIENTS[client](cluster.bootstrap_servers_of("SASL"), topic, mechanism, user, "wrong-password")
    error = CLIENTS[client](gateway.bootstrap_servers, topic, mechanism, user, "wrong-password")
    assert error
    assert error == directly
    assert gateway.metric("weir_authentication_failures_total", reason="refused") > failed
    assert authenticated(gateway, mechanism) == succeeded
    assert usage(gateway, user) is None


def test_mechanism_unknown_to_the_broker_is_counted(gateway: Weir) -> None:
    failed = gateway.metric("weir_authentication_failures_total", reason="unsupported_mechanism")
    with connect(gateway) as connection:
        connection.sendall(request(17, 1, struct.pack(">h", 4) + b"NONE"))
        assert b"SCRAM-SHA-256" in read_to_end(connection)
    assert gateway.metric("weir_authentication_failures_total", reason="unsupported_mechanism") == failed + 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_raw_tokens_of_old_clients_work(gateway: Weir, mechanism: str) -> None:
    """librdkafka sends raw tokens to brokers before 1.0, if it is configured for such a broker."""
    succeeded = authenticated(gateway, mechanism)
    old = {"api.version.request": False, "broker.version.fallback": "0.11.0.0"}
    admin = AdminClient(
        {"bootstrap.servers": gateway.bootstrap_servers, **librdkafka_properties(mechanism, "alice", PASSWORDS["alice"]), **old}
    )
    assert [broker.port for broker in admin.list_topics(timeout=60).brokers.values()] == [gateway.ports[1]]
    assert authenticated(gateway, mechanism) > succeeded


def test_wrong_password_in_a_raw_token_is_counted(gateway: Weir) -> None:
    failed = gateway.metric("weir_authentication_failures_total", reason="closed")
    token = b"\0alice\0wrong-password"
    with connect(gateway) as connection:
        connection.sendall(request(17, 0, struct.pack(">h", 5) + b"PLAIN"))
        read_answer(connection)
        connection.sendall(struct.pack(">i", len(token)) + token)
        assert read_to_end(connection) == b""
    wait_until(lambda: gateway.metric("weir_authentication_failures_total", reason="closed") == failed + 1, "it is counted")


# Quotas by user.


@pytest.fixture
def own_gateway(cluster: KafkaCluster, tmp_path: Path) -> Iterator[Weir]:
    with gateway_before(cluster.bootstrap_servers_of("SASL"), tmp_path, credentials(tmp_path)) as running:
        yield running


LEVELS = [
    {"user": "alice", "client-id": "etl"},
    {"user": "alice", "client-id": "<default>"},
    {"user": "alice"},
    {"user": "<default>", "client-id": "etl"},
    {"user": "<default>", "client-id": "<default>"},
    {"user": "<default>"},
    {"client-id": "etl"},
    {"client-id": "<default>"},
]
"""Kafka's eight levels, most specific first."""


def producer(gateway: Weir, user: str) -> Producer:
    options = librdkafka_properties("SCRAM-SHA-256", user, PASSWORDS[user])
    return Producer({"bootstrap.servers": gateway.bootstrap_servers, "client.id": "etl", "linger.ms": 0, **options})


def send(sender: Producer, topic: str, size: int, count: int = 1) -> None:
    for _ in range(count):
        sender.produce(topic, bytes(size))
        assert sender.flush(60.0) == 0


def test_all_eight_levels_apply_to_a_real_user(own_gateway: Weir, topic: str) -> None:
    gateway, alice = own_gateway, producer(own_gateway, "alice")
    for first in range(len(LEVELS)):
        rows = [entity | {QUOTA_KEY: 1_000_000 + rank} for rank, entity in enumerate(LEVELS)][first:]
        gateway.write_config(gateway.config | {"quotas": QUOTAS | {"entities": rows}})
        wait_until(lambda: gateway.metric("weir_config_version") == first + 2, "the file is applied")  # noqa: B023
        send(alice, topic, 100)
        level = ", ".join(f"{kind}={name}" for kind, name in LEVELS[first].items())
        used = {
            (row.labels["user"], row.labels["client_id"])
            for row in samples(gateway, "weir_quota_limit")
            if row.value == 1_000_000 + first
        }
        tags = ("alice" if "user" in LEVELS[first] else "", "etl" if "client-id" in LEVELS[first] else "")
        assert used == {tags}, level


def samples(gateway: Weir, name: str) -> list[Any]:
    families = text_string_to_metric_families(gateway.get("/metrics"))
    return [sample for family in families for sample in family.samples if sample.name == name]


def test_user_quota_applies_to_that_user_only(own_gateway: Weir, topic: str) -> None:
    gateway = own_gateway
    rows = [{"user": "alice", QUOTA_KEY: 20_000}, {"user": "<default>", QUOTA_KEY: 20_000}, {"user": "bob", "exempt": True}]
    gateway.write_config(gateway.config | {"quotas": QUOTAS | {"entities": rows}})
    wait_until(lambda: gateway.metric("weir_config_version") == 2, "the file is applied")
    alice, bob = producer(gateway, "alice"), producer(gateway, "bob")
    send(bob, topic, 10_000, count=6)
    begin = time.monotonic()
    send(alice, topic, 10_000, count=6)
    assert time.monotonic() - begin > 1.0, "60 kB at 20 kB/s with a burst of 20 kB take two seconds"
    throttled = {user: gateway.metric("weir_throttled_requests_total", user=user) for user in ("alice", "bob")}
    assert throttled["alice"] > 0
    assert throttled["bob"] == 0


# Connections by user.


def logged_in(gateway: Weir, user: str) -> RequestClient:
    client = RequestClient(gateway.bootstrap_servers, "etl")
    client.ask(ApiKey.API_VERSIONS, 3, {"client_software_name": "weir-tests", "client_software_version": "1.0"})
    client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    token = f"\0{user}\0{PASSWORDS[user]}".encode()
    assert client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"] == 0
    return client


def test_connections_of_a_user_have_a_maximum_and_a_rate(own_gateway: Weir) -> None:
    """The window has two samples, so the burst of a rate of 2 is two connections."""
    gateway = own_gateway
    rows = [{"user": "alice", "max_connections": 2}, {"user": "bob", "connection_creation_rate": 2}]
    gateway.apply(quotas=QUOTAS | {"entities": rows})
    metadata = (ApiKey.METADATA, 1, {"topics": []})
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(logged_in(gateway, "alice")) for _ in range(3))
        with pytest.raises(ConnectionError):
            third.ask(*metadata)
        assert gateway.metric("weir_connections_rejected_total", reason="max_per_user") == 1
        assert second.ask(*metadata)["brokers"]
        alice = gateway.api("connections?user=alice&sort=since")["rows"]
        assert [(row["client_id"], row["software_name"], row["software_version"]) for row in alice] == [
            ("etl", "weir-tests", "1.0")
        ] * 2
        first.close()
        wait_until(lambda: gateway.metric("weir_user_connections", user="alice") == 1, "the closed connection is not counted")
        assert stack.enter_context(logged_in(gateway, "alice")).ask(*metadata)["brokers"]

        def throttled() -> float:
            return gateway.metric("weir_throttled_requests_total", kind="connection", user="bob")

        many = 0
        while many < 40 and not throttled():  # a slow machine opens some of them within the rate
            assert stack.enter_context(logged_in(gateway, "bob")).ask(*metadata)["brokers"]
            many += 1
        assert 1 <= throttled() <= many - 2
        assert gateway.metric("weir_connections_rejected_total") == 1


# Re-authentication (KIP-368).


def test_sessions_reauthenticate_under_load_without_loss(cluster: KafkaCluster, tmp_path: Path) -> None:
    """`python -m loadtest.scenarios.reauthentication` runs longer."""
    servers = cluster.bootstrap_servers_of(reauthentication.LISTENER)
    with gateway_before(servers, tmp_path, credentials(tmp_path)) as gateway:
        report = reauthentication.run(cluster, gateway, 2.25 * MAX_REAUTH_MS / 1000, tmp_path)
    assert (report.lost, report.doubled) == (0, 0), report
    assert report.disconnects == 0, report
    assert report.errors == (), report
    # each connection of the producers and the consumer, at least twice
    assert report.reauthentications >= 2 * (len(MECHANISMS) + 1), report


# Weir's own connections.


def test_gateway_with_credentials_is_ready(gateway: Weir) -> None:
    assert gateway.get("/readyz") == "ready\n"
    assert PASSWORDS["weir"] not in gateway.log()
    assert PASSWORDS["weir"] not in gateway.get("/api/config")


def test_wrong_credentials_are_named_and_corrected_ones_used(cluster: KafkaCluster, tmp_path: Path) -> None:
    wrong = credentials(tmp_path, "wrong-password")
    with gateway_before(cluster.bootstrap_servers_of("SASL"), tmp_path, wrong, wait="/livez") as gateway:
        why_not = wait_until(
            lambda: "upstream.sasl.password_file" in (said := gateway.not_ready()) and said, "/readyz gives the reason"
        )
        assert "refuse weir by SCRAM-SHA-512" in why_not
        credentials(tmp_path)
        wait_until(lambda: not gateway.not_ready(), "the gateway is ready")
        assert "wrong-password" not in gateway.log()


def test_clients_are_served_without_upstream_credentials(cluster: KafkaCluster, tmp_path: Path, topic: str) -> None:
    with gateway_before(cluster.bootstrap_servers_of("SASL"), tmp_path, None) as gateway:
        (warning,) = gateway.logged("upstream.sasl is not set")
        assert "OAUTHBEARER" in warning["msg"]
        assert with_librdkafka(gateway.bootstrap_servers, topic, "SCRAM-SHA-256", "alice", PASSWORDS["alice"]) is None
        assert usage(gateway, "alice") is not None
        # The gateway has found out that clients must authenticate.
        with connect(gateway) as connection:
            connection.sendall(request(METADATA, 1, struct.pack(">i", 0)))
            assert read_to_end(connection) == b""
        assert gateway.metric("weir_protocol_errors_total", reason="not_authenticated") == 1


# Commands that connect to the brokers.


@pytest.mark.parametrize(("listener", "mechanism"), [("SASL", "PLAIN"), ("SASL", "SCRAM-SHA-256"), ("SECURE", "SCRAM-SHA-512")])
def test_command_config_is_that_of_kafkas_tools(
    cluster: KafkaCluster,
    authority: Authority,
    tmp_path: Path,
    listener: str,
    mechanism: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers, protocol = cluster.bootstrap_servers_of(listener), "SASL_SSL" if listener == "SECURE" else "SASL_PLAINTEXT"
    values = java_properties(mechanism, "bob", PASSWORDS["bob"], security_protocol=protocol)
    if listener == "SECURE":
        values |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.cert)}
    settings = tmp_path / "admin.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    config = tmp_path / "weir.yaml"
    # Brokers of tests have ports from 22000, so none of them is taken for this listener.
    config.write_text(f"upstream: {{bootstrap_servers: ['{servers}']}}\nlisteners: [{{name: clients, bootstrap_port: 1024}}]\n")
    access = ["--bootstrap-server", servers, "--command-config", str(settings)]
    user = ["--entity-type", "users", "--entity-name", f"by-{listener}-{mechanism}"]
    quota = ["--alter", *user, "--add-config", f"{QUOTA_KEY}=12345"]
    run_tool("kafka.admin.ConfigCommand", *access, *quota)

    printed = ""
    deadline = time.monotonic() + SECONDS_TO_BE_APPLIED
    while f"- {{user: {user[-1]}, producer_byte_rate: 12345}}" not in printed:  # the broker applies it a moment later
        assert time.monotonic() < deadline, printed
        assert main(["quotas", "import", "--config", str(config), *access]) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
    settings.write_text(settings.read_text().replace(PASSWORDS["bob"], "wrong-password"))
    assert main(["quotas", "import", "--config", str(config), *access]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"{servers}: the brokers refuse the user bob with {mechanism} — correct username and password in sasl.jaas.config of"
        f" {settings}\n"
    )
    assert main(["quotas", "import", "--config", str(config), "--bootstrap-server", servers]) == 1
    reason = "the port speaks TLS" if listener == "SECURE" else "the brokers require SASL (PLAIN"
    assert reason in capsys.readouterr().err


# Unauthenticated clients.


def connect(gateway: Weir) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.ports[0]), 60.0)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (request(METADATA, 1, struct.pack(">i", 0)), "not_authenticated"),
        (request(0, 9, bytes(1000)), "not_authenticated"),
        (struct.pack(">i", 512 * 1024 + 1) + request(36, 1, bytes(100))[4:], "not_authenticated_size"),
        (request(36, 1, struct.pack(">i", 3) + b"\0a\0"), "sasl_order"),
        (request(17, 0, struct.pack(">h", 6) + b"GSSAPI"), "sasl_raw_unreadable"),
    ],
    ids=["metadata", "produce", "a big frame", "a token unasked", "raw tokens that can't be read"],
)
def test_unauthenticated_client_may_only_authenticate(gateway: Weir, frame: bytes, reason: str) -> None:
    count = gateway.metric("weir_protocol_errors_total", reason=reason)
    with connect(gateway) as connection:
        connection.sendall(frame)
        assert read_to_end(connection) == b""
    wait_until(lambda: gateway.metric("weir_protocol_errors_total", reason=reason) == count + 1, "it is counted")


def test_slow_unauthenticated_clients_delay_nobody(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    frame = struct.pack(">i", 500_000) + request(36, 1, bytes(500_000))[4:]
    listener = {"sasl": {"timeout_seconds": 10.0}}
    with ExitStack() as stack:
        servers = cluster.bootstrap_servers_of("SASL")
        gateway = stack.enter_context(gateway_before(servers, tmp_path, credentials(tmp_path), listener=listener))
        slow = [stack.enter_context(connect(gateway)) for _ in range(200)]
        for at in range(20):
            for connection in slow[::2]:
                with suppress(ConnectionError):  # closed already on a slow machine
                    connection.sendall(frame[at : at + 1])
        assert with_librdkafka(gateway.bootstrap_servers, topic, "PLAIN", "bob", PASSWORDS["bob"]) is None
        for connection in slow:
            assert read_to_end(connection) == b""
        assert gateway.metric("weir_connections_rejected_total", reason="authentication_timeout") == len(slow)


# Tokens that no client library sends.

BEARER = unsecured_token("alice").encode()
ALICE_TOKENS: dict[str, tuple[str, bytes, bytes]] = {
    "authorization id": ("PLAIN", b"alice\0alice\0" + PASSWORDS["alice"].encode(), b""),
    "two auth keys": ("OAUTHBEARER", b"n,,\1auth=Bearer opaque\1auth=Bearer " + BEARER + b"\1\1", b""),
    "TokenAuth": ("SCRAM-SHA-256", b"n,,n=alice,r=nonce,TokenAuth=true", b"n=alice,r=nonce,TokenAuth=true"),
    "the last tokenauth": (
        "SCRAM-SHA-256",
        b"n,,n=alice,r=nonce,tokenauth=true,tokenauth=false",
        b"n=alice,r=nonce,tokenauth=false",
    ),
    "reserved": ("SCRAM-SHA-256", b"n,a=alice,m=x,n=alice,r=nonce", b"n=alice,r=nonce"),
}
"""The mechanism, the client's first token, and its form in the proof of Kafka's `ScramSaslServer`."""

REFUSED_TOKENS: dict[str, tuple[str, bytes]] = {
    "PLAIN with a third NUL": ("PLAIN", b"\0alice\0" + PASSWORDS["alice"].encode() + b"\0junk"),  # older brokers accept it
    "PLAIN as somebody else": ("PLAIN", b"bob\0alice\0" + PASSWORDS["alice"].encode()),
    "SCRAM as somebody else": ("SCRAM-SHA-256", b"n,a=bob,n=alice,r=nonce"),
    "SCRAM, escaped authorization id": ("SCRAM-SHA-256", b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=nonce"),
    "SCRAM not ASCII": ("SCRAM-SHA-256", "n,,n=\uff41lice,r=nonce".encode()),
    "OAUTHBEARER as somebody else": ("OAUTHBEARER", b"n,a=bob,\1auth=Bearer " + BEARER + b"\1\1"),
}


def exchange(connection: socket.socket, token: bytes) -> tuple[int, bytes]:
    """Send a token in a SaslAuthenticate request and return the broker's error code and token."""
    connection.sendall(request(36, 0, struct.pack(">i", len(token)) + token))
    answer = read_answer(connection)
    error_code, message = struct.unpack_from(">hh", answer, 4)
    at = 8 + max(message, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return error_code, answer[at + 4 : at + 4 + max(size, 0)]


def begin(gateway: Weir, mechanism: str) -> socket.socket:
    """Open a connection and agree on the mechanism."""
    connection = connect(gateway)
    connection.sendall(request(17, 1, struct.pack(">h", len(mechanism)) + mechanism.encode()))
    read_answer(connection)
    return connection


def scram_final(bare: bytes, salted: bytes, password: str) -> bytes:
    """Return the client's second token (RFC 5802) after the broker's first token."""
    fields = dict(part.split(b"=", 1) for part in salted.split(b","))
    key = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    client_key = hmac.digest(key, b"Client Key", "sha256")
    without_proof = b"c=biws,r=" + fields[b"r"]
    signed = hmac.digest(hashlib.sha256(client_key).digest(), b",".join((bare, salted, without_proof)), "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signed, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize("name", ALICE_TOKENS)
def test_broker_and_gateway_read_the_same_name(gateway: Weir, name: str) -> None:
    mechanism, token, bare = ALICE_TOKENS[name]
    before = usage(gateway, "alice")
    with begin(gateway, mechanism) as connection:
        error_code, answer = exchange(connection, token)
        if bare:
            error_code, answer = exchange(connection, scram_final(bare, answer, PASSWORDS["alice"]))
            assert answer.startswith(b"v=")
        assert error_code == 0, "the broker accepts the token"
        connection.sendall(m.produce(9))
        read_answer(connection)
        after = usage(gateway, "alice")
    assert after is not None
    assert after["amount_total"] > (before["amount_total"] if before else 0)
    assert usage(gateway, "ANONYMOUS") is None


@pytest.mark.parametrize("name", REFUSED_TOKENS)
def test_broker_refuses_the_names_that_weir_refuses(gateway: Weir, name: str) -> None:
    mechanism, token = REFUSED_TOKENS[name]
    unreadable = gateway.metric("weir_authentication_failures_total", reason="unreadable")
    with begin(gateway, mechanism) as connection:
        assert exchange(connection, token)[0] == 58  # SASL_AUTHENTICATION_FAILED
    assert gateway.metric("weir_authentication_failures_total", reason="unreadable") == unreadable


def test_secrets_are_neither_logged_nor_shown(gateway: Weir) -> None:
    """This test runs after all others of this file."""
    shown = gateway.log() + "".join(gateway.get(page) for page in ("/metrics", "/api/quotas", "/api/config", "/api/throttles"))
    bearer = re.escape(unsecured_token("alice").partition(".")[0])
    assert not re.search("|".join([*map(re.escape, PASSWORDS.values()), "wrong-password", bearer]), shown)
