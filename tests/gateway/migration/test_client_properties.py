"""`--command-config`: Kafka's properties, and an error with a remedy for everything else."""

from pathlib import Path

import pytest

from gateway.migration import MigrationError
from gateway.migration.client_properties import KEYS, ClientProperties, SaslLogin, parse_properties, read_properties
from gateway.proxy.tls.contexts import ClientTls
from loadtest.testkit.kafka.sasl import java_properties

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "s3cr3t"


def parsed(**lines: str) -> ClientProperties:
    return parse_properties("".join(f"{key.replace('_', '.')}={value}\n" for key, value in lines.items()), "admin.properties")


def test_no_keys_are_plaintext() -> None:
    found = parse_properties("# nothing\n\n", "x")
    assert found == ClientProperties("x")
    assert found.security_protocol == "PLAINTEXT"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafkas_properties_of_each_mechanism_are_understood(mechanism: str) -> None:
    values = java_properties(mechanism, "alice", SECRET)
    found = parse_properties("".join(f"{key}={value}\n" for key, value in values.items()), "x")
    assert found.sasl == SaslLogin(mechanism, "alice", SECRET)
    assert (found.security_protocol, found.tls) == ("SASL_PLAINTEXT", None)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("line", "password"),
    [
        (f'{SCRAM} required username="a" password="b c;d=e";', "b c;d=e"),
        (f"{SCRAM} required username='a' password='b\"c';", 'b"c'),
        (f'{SCRAM} required username="a" password="b\\\\"c\\\\\\\\d";', 'b"c\\d'),  # both formats have escapes
        (f"{SCRAM} required username=a password=bcd;", "bcd"),
        (f'{SCRAM} required \\\n  username="a" \\\n  password="bcd";', "bcd"),
        (f'{SCRAM}   sufficient  password = "bcd"   username = "a"  ; ', "bcd"),
    ],
)
def test_jaas_config_is_read_as_java_reads_it(line: str, password: str) -> None:
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={line}\n"
    assert parse_properties(text, "x").sasl == SaslLogin("SCRAM-SHA-512", "a", password)


def test_tls_keys_are_understood() -> None:
    found = parse_properties(
        "security.protocol = SSL\nssl.truststore.type: PEM\nssl.truststore.location /etc/ca.pem\nssl.keystore.type=pem\n"
        "ssl.keystore.location=/etc/me.pem\nssl.endpoint.identification.algorithm=\nclient.id=me\nrequest.timeout.ms=1500\n",
        "x",
    )
    own = Path("/etc/me.pem")
    assert found.tls == ClientTls(Path("/etc/ca.pem"), own, own, verify_hostname=False, min_version="1.2")
    assert (found.security_protocol, found.client_id, found.request_timeout_ms) == ("SSL", "me", 1500)


SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({"ssl.trust.location": "x"}, "ssl.trust.location is not a key that Weir understands — write ssl.truststore.location"),
        ({"bootstrap_servers": "x:9092"}, "bootstrap.servers is not a key that Weir understands — remove it; the keys are "),
        (SASL | {"sasl_kerberos_service_name": "kafka"}, "sasl.kerberos.service.name is not a key"),
        ({"sasl_kerberos_service_name": "kafka"}, "logs in by Kerberos (GSSAPI), which Weir itself can't use — name a file"),
        (
            {"sasl_kerberos_service_name": "kafka", "sasl_mechanism": "GSSAPI", "bootstrap_servers": "b:1"},
            "logs in by Kerberos (GSSAPI), which Weir itself can't use — name a file with a user of PLAIN, SCRAM-SHA-256",
        ),
        ({"security_protocol": "TLS"}, "security.protocol is 'TLS', which Weir can't use — write one of PLAINTEXT, SSL, SASL_"),
        (
            {"security_protocol": "SASL_SSL"},
            "has no sasl.mechanism, and Weir does not know Kafka's default, GSSAPI — write one of",
        ),
        (
            SASL | {"sasl_mechanism": "GSSAPI"},
            "logs in by Kerberos (GSSAPI), which Weir itself can't use — name a file",
        ),
        (
            SASL | {"sasl_mechanism": "EXTERNAL"},
            "sasl.mechanism is 'EXTERNAL', which Weir can't use — write one of PLAIN, SCRAM-SHA",
        ),
        (SASL, "has no sasl.jaas.config, so there is no user for SCRAM-SHA-512 — write sasl.jaas.config="),
        (
            SASL | {"sasl_jaas_config": f'username="a" password="{SECRET}"'},
            "sasl.jaas.config can't be read (its value is secret",
        ),
        (SASL | {"sasl_jaas_config": f'{SCRAM} required username="a" password="{SECRET};'}, "sasl.jaas.config can't be read"),
        (
            SASL | {"sasl_jaas_config": f'x.Plain required username="a" password="{SECRET}";'},
            "names x.Plain, which is not the module of",
        ),
        (SASL | {"sasl_jaas_config": f'{SCRAM} required username="a";'}, "sasl.jaas.config has no password"),
        (SASL | {"sasl_jaas_config": f'{SCRAM} required username="a" password="";'}, "sasl.jaas.config has no password"),
        (
            SASL | {"sasl_jaas_config": f'{SCRAM} required username="a" password="{SECRET}" tokenauth="true";'},
            "has the option tokenauth, unknown to Weir — remove it",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_location": "t.jks"},
            "ssl.truststore.type is JKS, and Weir reads PEM only",
        ),
        ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "x"}, "is 'x' — write https, or leave it empty"),
        ({"request_timeout_ms": "soon"}, "request.timeout.ms is 'soon' — write milliseconds"),
        ({"request_timeout_ms": "0"}, "request.timeout.ms is '0' — write milliseconds"),
        ({"request_timeout_ms": "1" * 5_000}, f"request.timeout.ms is '{'1' * 40}' — write milliseconds"),
        ({"client_id": "\\u00zz"}, "has a \\u escape without four hexadecimal digits — correct it"),
    ],
)
def test_wrong_properties_are_named_with_a_remedy(lines: dict[str, str], problem: str) -> None:
    with pytest.raises(MigrationError) as error:
        parsed(**lines)
    assert str(error.value).startswith("admin.properties: ")
    assert problem in str(error.value)
    assert SECRET not in str(error.value)


def test_line_without_a_value_is_not_shown() -> None:
    """It may be a part of a password."""
    with pytest.raises(MigrationError, match=r"^x: line 2: a line without a value is not a key that Weir understands") as error:
        parse_properties(f"security.protocol=SSL\n{SECRET}\n", "x")
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"\xff\xfe"), Path.mkdir, lambda path: None])
def test_unreadable_file_is_named(tmp_path: Path, make) -> None:
    path = tmp_path / "admin.properties"
    make(path)
    with pytest.raises(MigrationError, match=r"--command-config .*admin.properties: .* — name a properties file"):
        read_properties(path)


def test_every_key_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    from gateway.commands import main

    for command in ("import", "lift", "restore"):
        with pytest.raises(SystemExit):
            main(["quotas", command, "--help"])
        shown = capsys.readouterr().out
        assert all(key in shown for key in KEYS), command
        assert "example" in shown
