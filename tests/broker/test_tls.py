"""TLS on both sides of Weir, with brokers that require a certificate: accepted clients, their names, and messages."""

import asyncio
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import KafkaError, Producer

from loadtest.testkit.certificates import DAY, LOOPBACK, Authority, Files, subject_of
from loadtest.testkit.kafka import KafkaCluster, KafkaListener
from tests.broker.test_malformed_requests import read_answer
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

TIMEOUT = 60.0
BROKERS = 3
HALF_OPEN = 1_000
RULES = "RULE:^CN=([a-z]+),OU=clients,O=Weir$/$1/U,DEFAULT"
METADATA, API_VERSIONS = 3, 18


class Pki:
    """The certificates of these tests: of brokers, of Weir, of a listener and of its clients."""

    def __init__(self, directory: Path) -> None:
        self.inside = Authority(directory / "inside", "brokers")
        self.outside = Authority(directory / "outside", "clients")
        other = Authority(directory / "other", "clients")  # the same name, another key
        self.broker = self.inside.issue("broker", LOOPBACK)
        self.misnamed_broker = self.inside.issue("misnamed", ["kafka.example.com"])
        self.weir = self.inside.issue("weir")
        self.listener = self.outside.issue("listener", [*LOOPBACK, "kafka.test", "*.kafka.test"])
        self.alice = self.outside.issue("alice", subject=subject_of("alice", "clients"))
        self.bad: dict[str, Files] = {
            "expired": self.outside.issue("expired", valid=(-3 * DAY, -timedelta(seconds=1))),
            "not_yet_valid": self.outside.issue("early", valid=(DAY, 3 * DAY)),
            "self_signed": self.outside.issue("self-signed", self_signed=True),
            "unknown_ca": other.issue("stranger"),
            "wrong_ca": self.inside.issue("insider"),
        }


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def cluster(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers with a listener that requires client certificates, and one with a certificate for another host."""

    def keystore(files: Files) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(pki.inside.cert),
            "ssl.client.auth": "required",
        }

    listeners = [
        KafkaListener("MTLS", "SSL", keystore(pki.broker)),
        KafkaListener("MISNAMED", "SSL", keystore(pki.misnamed_broker)),
    ]
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), BROKERS, listeners=listeners) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: KafkaCluster) -> str:
    return create_topic(cluster.bootstrap_servers, "tls", BROKERS)


def upstream(pki: Pki, cluster: KafkaCluster, listener: str = "MTLS", **tls: Any) -> dict[str, Any]:
    """Return the `upstream` section for a TLS listener of the brokers, with Weir's own certificate."""
    own = {"ca": str(pki.inside.cert), "cert": str(pki.weir.cert), "key": str(pki.weir.key)}
    return {"bootstrap_servers": cluster.bootstrap_servers_of(listener).split(","), "tls": {**own, **tls}}


def server(files: Files, **more: Any) -> dict[str, Any]:
    """Return the `tls` section of a listener."""
    return {"cert": str(files.cert), "key": str(files.key), **more}


@pytest.fixture(scope="module")
def gateway(pki: Pki, cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway with TLS on both sides, required client certificates and quotas for ALICE."""
    quotas = {"entities": [{"user": "ALICE", "producer_byte_rate": 10**9, "consumer_byte_rate": 10**9}]}
    config = {"upstream": upstream(pki, cluster), "quotas": quotas}
    tls = server(pki.listener, client_ca=str(pki.outside.cert), principal_mapping_rules=RULES)
    with Weir(tmp_path_factory.mktemp("weir"), "", config, {"tls": tls}) as running:
        yield running


def context(pki: Pki, client: Files | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=pki.outside.cert)
    if client is not None:
        made.load_cert_chain(client.cert, client.key)
    return made


def request(api_key: int, body: bytes) -> bytes:
    """Return a whole frame of version 1 with a version 1 request header."""
    header = struct.pack(">hhih", api_key, 1, 7, 3) + b"tls"
    return struct.pack(">i", len(header) + len(body)) + header + body


def metadata(connection: socket.socket) -> bytes:
    """Return the broker's answer to a Metadata request for no topics. Raises OSError if there is none."""
    connection.sendall(request(METADATA, struct.pack(">i", 0)))
    return read_answer(connection)


@contextmanager
def connected(gateway: Weir, tls: ssl.SSLContext, name: str | None = "localhost") -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT) as plain,
        tls.wrap_socket(plain, server_hostname=name) as connection,
    ):
        yield connection


def refused(gateway: Weir, tls: ssl.SSLContext, alert: str, name: str | None = "localhost") -> None:
    """Fail unless the gateway ends the handshake with an alert. In TLS 1.3 the alert follows the client's own part."""
    with pytest.raises(ssl.SSLError, match=alert), connected(gateway, tls, name) as connection:
        metadata(connection)


def unanswered(connection: socket.socket) -> None:
    """Fail unless a request gets the end of the connection instead of an answer."""
    with pytest.raises(ConnectionError):
        metadata(connection)


def said(gateway: Weir, reason: str) -> list[str]:
    return [event["msg"] for event in gateway.logged(reason=reason)]


@contextmanager
def failed_handshake(gateway: Weir, reason: str) -> Iterator[None]:
    """Fail unless one handshake fails within the block and is counted."""
    before = gateway.metric("weir_tls_handshake_failures_total", reason=reason)
    yield
    wait_until(
        lambda: gateway.metric("weir_tls_handshake_failures_total", reason=reason) == before + 1, f"{reason} is counted once"
    )
    assert said(gateway, f"tls_{reason}")


def produce(gateway: Weir, pki: Pki, topic: str, client: Files) -> None:
    """Send one record to each partition with librdkafka, through every broker's port."""
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": gateway.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(pki.outside.cert),
            "ssl.certificate.location": str(client.cert),
            "ssl.key.location": str(client.key),
        }
    )
    for partition in range(BROKERS):
        producer.produce(topic, b"x", partition=partition, callback=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(TIMEOUT) == 0
    assert failed == []


def test_certificate_names_the_user_with_a_quota(gateway: Weir, pki: Pki, topic: str) -> None:
    produce(gateway, pki, topic, pki.alice)
    assert gateway.metric("weir_quota_bytes_total", kind="produce", user="ALICE") > 0
    assert gateway.label_values("weir_quota_bytes_total", "user") == {"ALICE"}


def test_certificate_name_without_a_rule_is_refused(start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster) -> None:
    tls = server(pki.listener, client_ca=str(pki.outside.cert), principal_mapping_rules="RULE:^CN=nobody$/x/")
    gateway = start_weir("", upstream=upstream(pki, cluster), listener={"tls": tls})
    with failed_handshake(gateway, "principal"), connected(gateway, context(pki, pki.alice)) as connection:
        unanswered(connection)
    assert "'CN=alice,OU=clients,O=Weir'" in said(gateway, "tls_principal")[0]


@pytest.mark.parametrize(
    ("client", "reason", "words", "alert"),
    [
        ("expired", "expired", "the client's certificate has expired", "CERTIFICATE_EXPIRED"),
        ("not_yet_valid", "not_yet_valid", "the client's certificate is not valid yet", "BAD_CERTIFICATE"),
        ("self_signed", "self_signed", "the client's certificate is self-signed", "UNKNOWN_CA"),
        ("unknown_ca", "unknown_ca", "from an authority that is not trusted here", "UNKNOWN_CA|DECRYPT_ERROR"),
        ("wrong_ca", "unknown_ca", "from an authority that is not trusted here", "UNKNOWN_CA"),
        (None, "no_certificate", "the client's certificate is missing, and one is required", "CERTIFICATE_REQUIRED"),
    ],
)
def test_bad_client_certificate_is_refused_with_a_reason(
    gateway: Weir, pki: Pki, client: str | None, reason: str, words: str, alert: str
) -> None:
    files = None if client is None else pki.bad[client]
    with failed_handshake(gateway, reason):
        refused(gateway, context(pki, files), alert)
    assert any(words in line for line in said(gateway, f"tls_{reason}"))


def test_requested_certificates_may_be_missing_but_not_invalid(
    start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster
) -> None:
    tls = server(pki.listener, client_ca=str(pki.outside.cert), client_auth="requested")
    gateway = start_weir("", upstream=upstream(pki, cluster), listener={"tls": tls})
    for good in (None, pki.alice):
        with connected(gateway, context(pki, good)) as connection:
            assert metadata(connection)
    with failed_handshake(gateway, "self_signed"):
        refused(gateway, context(pki, pki.bad["self_signed"]), "UNKNOWN_CA")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
def test_each_tls_version_works(gateway: Weir, pki: Pki, version: ssl.TLSVersion) -> None:
    tls = context(pki, pki.alice)
    tls.minimum_version = tls.maximum_version = version
    with connected(gateway, tls) as connection:
        assert metadata(connection)
        assert connection.version() == version.name.replace("_", ".")


def test_plaintext_on_a_tls_port_is_named(gateway: Weir) -> None:
    with failed_handshake(gateway, "not_tls"), socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT) as plain:
        plain.sendall(request(API_VERSIONS, b""))
        assert len(plain.recv(1_000)) <= 7  # only an alert
    assert "is its security.protocol PLAINTEXT" in said(gateway, "tls_not_tls")[0]


@pytest.mark.parametrize(
    ("listener", "tls", "words"),
    [
        ("MISNAMED", {}, "the broker's certificate is for another host (IP address mismatch, certificate is not valid for"),
        ("MTLS", {"ca": "outside"}, "the broker's certificate is from an authority that is not trusted here"),
        (
            "MTLS",
            {"cert": None, "key": None},
            "the peer refused Weir's certificate, or the lack of one, with the alert: bad certificate",
        ),
    ],
    ids=["host", "authority", "own"],
)
def test_wrong_upstream_certificate_is_named(
    start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster, listener: str, tls: dict[str, Any], words: str
) -> None:
    given = {key: str(pki.outside.cert) if value == "outside" else value for key, value in tls.items()}
    section = upstream(pki, cluster, listener, **given)
    section["tls"] = {key: value for key, value in section["tls"].items() if value is not None}
    gateway = start_weir("", wait="/livez", upstream=section)
    with socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT) as client:
        unanswered(client)
    wait_until(lambda: words in gateway.log(), words)


def test_hostname_verification_can_be_turned_off(start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster) -> None:
    gateway = start_weir("", upstream=upstream(pki, cluster, "MISNAMED", verify_hostname=False))
    with socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT) as client:
        assert metadata(client)


def test_replaced_certificate_is_used_for_next_connection(
    start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "own")
    files, new = authority.issue("first", LOOPBACK), authority.issue("second", LOOPBACK)
    gateway = start_weir("", upstream=upstream(pki, cluster), listener={"tls": server(files)})
    tls = ssl.create_default_context(cafile=authority.cert)

    def shown() -> str:
        with connected(gateway, tls) as connection:
            certificate: Any = connection.getpeercert()
            return str(dict(part[0] for part in certificate["subject"])["commonName"])

    with connected(gateway, tls) as open_one:
        assert shown() == "first"
        files.replace_with(new)
        wait_until(lambda: gateway.metric("weir_tls_reloads_total", result="success") == 1, "the new files are applied")
        assert shown() == "second"
        files.cert.write_text("not a certificate")
        wait_until(lambda: gateway.metric("weir_tls_reloads_total", result="failure") == 1, "the bad file is noticed")
        assert shown() == "second"
        assert "the previous certificate stays in effect" in gateway.log()
        assert metadata(open_one)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve names below kafka.test to this machine, as a DNS zone would."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        local = isinstance(host, str) and host.endswith("kafka.test")
        return resolve("127.0.0.1" if local else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.fixture(scope="module")
def by_name(pki: Pki, cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway with all brokers behind one port, distinguished by server name."""
    listener = {
        "tls": server(pki.listener),
        "advertised_host": "kafka.test",
        "broker_ports": None,
        "sni": "broker-{id}.kafka.test",
    }
    with Weir(tmp_path_factory.mktemp("sni"), "", {"upstream": upstream(pki, cluster)}, listener) as running:
        yield running


def addresses(answer: bytes) -> dict[int, tuple[str, int]]:
    """Return the brokers of a Metadata v1 answer."""
    found = {}
    (count,) = struct.unpack_from(">i", answer, 4)
    at = 8
    for _ in range(count):
        node_id, length = struct.unpack_from(">ih", answer, at)
        host = answer[at + 6 : at + 6 + length].decode()
        (port, rack) = struct.unpack_from(">ih", answer, at + 6 + length)
        found[node_id] = (host, port)
        at += 12 + length + max(rack, 0)
    return found


def test_sni_distinguishes_brokers_behind_one_port(by_name: Weir, pki: Pki) -> None:
    port = by_name.ports[0]
    expected = {node_id: (f"broker-{node_id}.kafka.test", port) for node_id in range(BROKERS)}
    for name in ("kafka.test", "KAFKA.test", "broker-0.kafka.test", "broker-2.kafka.test"):
        with connected(by_name, context(pki), name) as connection:
            assert addresses(metadata(connection)) == expected


async def test_client_reaches_every_leader_by_sni(by_name: Weir, pki: Pki, topic: str, names: None) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": f"kafka.test:{by_name.ports[0]}",
        "security_protocol": "SSL",
        "ssl_context": context(pki),
    }
    async with AIOKafkaProducer(**options) as producer:
        sent = [await producer.send_and_wait(topic, b"by name", partition=partition) for partition in range(BROKERS)]
    async with AIOKafkaConsumer(**options) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in range(BROKERS)]
        consumer.assign(partitions)
        for record, partition in zip(sent, partitions, strict=True):
            consumer.seek(partition, record.offset)
        async with asyncio.timeout(TIMEOUT):
            values = [(await consumer.getone(partition)).value for partition in partitions]
    assert values == [b"by name"] * BROKERS


@pytest.mark.parametrize("name", ["other.kafka.test", "broker-7.kafka.test", "broker-01.kafka.test", None])
def test_unknown_server_name_is_refused(by_name: Weir, pki: Pki, name: str | None) -> None:
    tls = context(pki)
    tls.check_hostname = False
    with failed_handshake(by_name, "server_name"):
        refused(by_name, tls, "UNRECOGNIZED_NAME", name)


def test_half_open_handshakes_block_nobody(
    start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster, topic: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * HALF_OPEN)), hard))
    tls = server(pki.listener, client_ca=str(pki.outside.cert), handshake_seconds=20.0)
    connections = {"max_per_ip": 2 * HALF_OPEN}  # all clients of this test share one address
    gateway = start_weir("", upstream=upstream(pki, cluster), listener={"tls": tls}, connections=connections)
    produce(gateway, pki, topic, pki.alice)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT)) for _ in range(HALF_OPEN)
        ]
        wait_until(lambda: gateway.metric("weir_tls_handshakes") > HALF_OPEN / 2, "all handshakes have begun")
        for number, connection in enumerate(silent):
            # Half of the clients send a byte now and then, which must not extend their time.
            if number % 2:
                connection.send(b"\x16")
        produce(gateway, pki, topic, pki.alice)
        wait_until(lambda: gateway.metric("weir_tls_handshakes") == 0, "all handshakes have ended")
        for connection in silent:
            connection.settimeout(TIMEOUT)
            with suppress(ConnectionResetError):  # its byte came while the gateway closed
                assert connection.recv(100) == b""
    assert gateway.metric("weir_tls_handshake_failures_total", reason="timeout") == HALF_OPEN
    assert "it did not finish within 20 s" in said(gateway, "tls_timeout")[0]
    produce(gateway, pki, topic, pki.alice)


def test_each_listener_has_its_own_addresses_and_security(
    start_weir: Callable[..., Weir], pki: Pki, cluster: KafkaCluster
) -> None:
    first = start_weir("", upstream=upstream(pki, cluster))  # its ports are used again below
    first.stop()
    ports = first.ports
    outside = {
        "name": "outside", "host": "127.0.0.1", "advertised_host": "kafka.test", "bootstrap_port": ports[0],
        "sni": "broker-{id}.kafka.test:443", "tls": server(pki.listener),
    }  # fmt: skip
    inside = {"name": "inside", "host": "127.0.0.1", "bootstrap_port": ports[1], "broker_ports": f"{ports[2]}-{ports[4]}"}
    first.write_config({**first.config, "listeners": [outside, inside]})
    with first as gateway:
        with connected(gateway, context(pki), "kafka.test") as connection:
            found = addresses(metadata(connection))
        assert found == {node_id: (f"broker-{node_id}.kafka.test", 443) for node_id in range(BROKERS)}
        with socket.create_connection(("127.0.0.1", ports[1]), TIMEOUT) as plain:
            assert addresses(metadata(plain)) == {node_id: ("127.0.0.1", ports[2] + node_id) for node_id in range(BROKERS)}
