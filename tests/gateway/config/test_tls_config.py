"""TLS in the config file: parsed values, and problems of the text and of the files that it names."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from gateway import clock
from gateway.config.certificates import certificate_warnings, first_expiries
from gateway.config.load import load_config
from gateway.config.problems import ConfigError, Problem
from gateway.config.tls import BrokerNames
from loadtest.testkit.certificates import DAY, LOOPBACK, Authority
from tests.gateway.config.texts import check_problem, parsed, problems_of

UPSTREAM = 'bootstrap_servers: ["127.0.0.1:9092"]'


def config(listener: str = "", upstream: str = "") -> str:
    return f"upstream: {{{UPSTREAM}{upstream}}}\nlisteners:\n  - {{name: clients, bootstrap_port: 29092{listener}}}\n"


def test_missing_tls_section_means_plaintext() -> None:
    found = parsed(config())
    assert (found.upstream.tls, found.listeners[0].tls, found.listeners[0].sni) == (None, None, None)


def test_every_key_is_read() -> None:
    listener = (
        ", tls: {cert: c.pem, key: k.pem, client_ca: ca.pem, client_auth: requested, handshake_seconds: 2.5, min_version: 1.3,"
        " principal_mapping_rules: 'RULE:^CN=(.*?),.*$/$1/L,DEFAULT'}"
    )
    found = parsed(config(listener, ", tls: {ca: /ca.pem, cert: c.pem, key: k.pem, verify_hostname: false}"))
    server, upstream = found.listeners[0].tls, found.upstream.tls
    assert server is not None
    assert upstream is not None
    assert (server.client_auth, server.handshake_seconds, server.min_version) == ("requested", 2.5, "1.3")
    resolved = server.resolved(Path("/etc/weir"))
    mine = {"cert": Path("/etc/weir/c.pem"), "key": Path("/etc/weir/k.pem")}
    assert resolved.files == mine | {"client_ca": Path("/etc/weir/ca.pem")}
    assert upstream.resolved(Path("/etc/weir")).files == mine | {"ca": Path("/ca.pem")}
    assert (upstream.verify_hostname, upstream.min_version) == (False, "1.2")
    assert parsed(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("keys", "client_auth"), [("", "none"), (", client_ca: a", "required"), (", client_ca: a, client_auth: none", "none")]
)
def test_client_ca_makes_client_certificates_required(keys: str, client_auth: str) -> None:
    tls = parsed(config(f", tls: {{cert: c, key: k{keys}}}")).listeners[0].tls
    assert tls is not None
    assert tls.client_auth == client_auth


def test_sni_replaces_broker_ports() -> None:
    listener = ", advertised_host: kafka.example.com, tls: {cert: c, key: k}, sni: 'broker-{id}.kafka.example.com:9092'"
    found = parsed(config(listener))
    assert found.listeners[0].broker_ports is None
    assert found.listeners[0].sni == BrokerNames("broker-{id}.kafka.example.com", 9092)
    assert parsed(found.model_dump_json()) == found


def test_broker_names_map_to_node_ids() -> None:
    names = BrokerNames("B-{id}.kafka.example.com", None)
    assert names.name(12) == "B-12.kafka.example.com"
    for node_id in (0, 7, 2**31 - 1):
        assert names.node_id(names.name(node_id).lower()) == node_id
    for name in ("", "b-.kafka.example.com", "b-07.kafka.example.com", "b-x.kafka.example.com", "b--1.kafka.example.com",
                 "b-1.kafka.example.org", "xb-1.kafka.example.com", "b-1.b-1.kafka.example.com", "b-²" + ".kafka.example.com",
                 "b-99999999999.kafka.example.com"):  # fmt: skip
        assert names.node_id(name) is None


TLS = ", tls: {cert: c, key: k}"


@pytest.mark.parametrize(
    ("text", "key", "message", "remedy"),
    [
        (config(", tls: {cert: c}"), "listeners[0].tls.key", "is missing", "key: weir.key"),
        (config(", tls: {cert: c, key: k, client_auth: required}"), "listeners[0].tls", "without client_ca", "client_ca"),
        (config(", tls: {cert: c, key: k, client_auth: maybe}"), "listeners[0].tls.client_auth", "not a choice", "'required'"),
        (config(", tls: {cert: c, key: k, min_version: 1}"), "listeners[0].tls.min_version", "not a choice", "'1.2' or '1.3'"),
        (config(", tls: {cert: c, key: k, ca: x}"), "listeners[0].tls.ca", "is not a key of", "upstream.tls"),
        (config(", tls: {cert: c, key: k, principal_mapping_rules: 'RULE:x'}"), "listeners[0].tls.principal_mapping_rules",
         "'RULE:x' is not a rule", "ssl.principal.mapping.rules"),
        (config(", sni: 'b-{id}.example.com'"), "listeners[0]", "has sni without tls", "add tls"),
        (config(TLS + ", sni: 'b.example.com'"), "listeners[0].sni", "does not have {id}", "broker-{id}"),
        (config(TLS + ", sni: '{id}:9092'"), "listeners[0].sni", "is not a host name", "broker-{id}"),
        (config(TLS + ", sni: 'b-{id}.example.com:0'"), "listeners[0].sni", "has a port", "broker-{id}"),
        (config(TLS + ", sni: 'b-{id}.example.com'"), "listeners[0]", "as a server name", "kafka.example.com"),
        (config(TLS + ", advertised_host: a.example, broker_ports: 1-9, sni: 'b-{id}.example.com'"), "listeners[0]",
         "both sni and broker_ports", "remove one"),
        (config(upstream=", tls: {cert: c}"), "upstream.tls", "key is missing", "add key"),
        (config(upstream=", tls: {verify_hostname: 'no'}"), "upstream.tls.verify_hostname", "true or false", "without quotes"),
    ],
)  # fmt: skip
def test_invalid_tls_text_is_refused_with_remedy(text: str, key: str, message: str, remedy: str) -> None:
    (found,) = problems_of(text)
    assert found.key == key
    assert message in found.message
    assert remedy in found.remedy


def checked(directory: Path, text: str) -> Problem:
    """Return the only problem of loading `text` as a file in `directory`."""
    file = directory / "weir.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (found,) = caught.value.problems
    return found


def test_relative_paths_start_at_the_config_file(authority: Authority, tmp_path: Path) -> None:
    authority.issue("server", LOOPBACK)
    file = tmp_path / "weir.yaml"
    file.write_text(config(", tls: {cert: server.pem, key: server.key, client_ca: ca.pem}", ", tls: {ca: ca.pem}"))
    found = load_config(file)
    assert certificate_warnings(found, tmp_path, clock.wall()) == []


def test_invalid_tls_files_are_refused(authority: Authority, tmp_path: Path) -> None:
    authority.issue("server", LOOPBACK)
    other = authority.issue("other", LOOPBACK)
    key = load_pem_private_key(other.key.read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "der.key").write_bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, _unencrypted()))
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "cut.pem").write_text(other.cert.read_text()[:200])
    (tmp_path / "chain.pem").write_bytes((tmp_path / "ca.pem").read_bytes() + other.cert.read_bytes())
    for cert, its_key, at, message, remedy in (
        ("gone.pem", "server.key", "cert", "does not exist", "starts at the config file"),
        (".", "server.key", "cert", "is a directory", "name the file"),
        ("text", "server.key", "cert", "holds no certificate in PEM", "-----BEGIN"),
        ("cut.pem", "server.key", "cert", "holds a damaged certificate", "PEM"),
        ("server.pem", "gone.key", "key", "does not exist", "starts at the config file"),
        ("server.pem", "text", "key", "holds no private key in PEM", "-----BEGIN"),
        ("server.pem", "server.pem", "key", "holds no private key in PEM", "-----BEGIN"),
        ("server.pem", "der.key", "key", "holds no private key in PEM", "-inform der"),
        ("other.pem", "locked.key", "key", "is encrypted", "remove the password"),
        ("server.pem", "other.key", "key", "is not the key of the certificate in server.pem, which is for 'CN=server,O=Weir'",
         "name the key"),
        ("chain.pem", "other.key", "cert", "has the certificate of other.key in place 2", "put it first"),
    ):  # fmt: skip
        found = checked(tmp_path, config(f", tls: {{cert: {cert}, key: {its_key}}}"))
        assert found.key == f"listeners[0].tls.{at}"
        assert message in found.message
        assert remedy in found.remedy
        assert found.line == 3
    assert checked(tmp_path, config(upstream=", tls: {ca: text}")).key == "upstream.tls.ca"


def _unencrypted():
    from cryptography.hazmat.primitives.serialization import NoEncryption

    return NoEncryption()


@pytest.mark.parametrize(
    ("hosts", "valid", "advertised", "words"),
    [
        (LOOPBACK, (-2 * DAY, -DAY), "localhost", "CN=server,O=Weir expired on"),
        (LOOPBACK, (-2 * DAY, 3 * DAY), "localhost", "CN=server,O=Weir expires on"),
        (LOOPBACK, (DAY, 30 * DAY), "localhost", "is not valid before"),
        (LOOPBACK, (-DAY, 30 * DAY), "kafka.example.com", "is for 127.0.0.1, localhost; clients that verify host names"),
        ((), (-DAY, 30 * DAY), "localhost", "has no subjectAltName"),
    ],
)
def test_questionable_certificate_warns(
    authority: Authority,
    tmp_path: Path,
    hosts: tuple[str, ...],
    valid: tuple[timedelta, timedelta],
    advertised: str,
    words: str,
) -> None:
    authority.issue("server", hosts, valid=valid)
    file = tmp_path / "weir.yaml"
    file.write_text(config(f", advertised_host: {advertised}, tls: {{cert: server.pem, key: server.key}}"))
    (warning,) = certificate_warnings(load_config(file), tmp_path, clock.wall())
    assert warning.startswith("listeners[0].tls.cert: ")
    assert words in warning


def test_wildcard_certificate_covers_every_broker(authority: Authority, tmp_path: Path) -> None:
    authority.issue("server", ["kafka.example.com", "*.kafka.example.com"])
    file = tmp_path / "weir.yaml"
    names = "advertised_host: kafka.example.com, sni: 'broker-{id}.kafka.example.com'"
    file.write_text(config(f", {names}, tls: {{cert: server.pem, key: server.key}}"))
    assert certificate_warnings(load_config(file), tmp_path, clock.wall()) == []


def test_first_certificate_to_expire_is_found(authority: Authority, tmp_path: Path) -> None:
    server = authority.issue("server", LOOPBACK, valid=(-DAY, 5 * DAY))
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.cert.read_bytes() + server.cert.read_bytes())
    found = first_expiries({"ca": bundle, "cert": authority.cert, "client_ca": tmp_path / "none.pem"})
    assert found == {
        "ca": pytest.approx(clock.wall() + 5 * DAY.total_seconds(), abs=600),
        "cert": pytest.approx(clock.wall() + 30 * DAY.total_seconds(), abs=600),
    }


CLIENT_CA = ", tls: {cert: c, key: k, client_ca: a}"
SASL = ", sasl: {mechanism: PLAIN, username: u, password_file: p}"


@pytest.mark.parametrize(
    ("listener", "upstream", "message"),
    [
        (CLIENT_CA, "", "the certificates of listeners[0].tls.client_ca never reach a broker"),
        ("", ", tls: {cert: c, key: k}", "all clients would have Weir's rights"),
    ],
)
def test_broker_acls_refuse_users_by_certificate(listener: str, upstream: str, message: str) -> None:
    check_problem(
        config(listener, upstream) + "quota_admins: broker_acls\n", "quota_admins", message, "line 4", "list principals"
    )
    for valid in (config(listener, upstream), config(listener, upstream + SASL) + "quota_admins: broker_acls\n"):
        parsed(valid)
