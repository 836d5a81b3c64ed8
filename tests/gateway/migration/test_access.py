"""The remedy if brokers refuse a command's credentials."""

from pathlib import Path

import pytest

from gateway.config.load import parse_config
from gateway.migration.access import by_config, by_properties

ADDRESS = (("127.0.0.1", 9092),)
PROPERTIES = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="weir" password="secret";
"""
CONFIG = 'upstream: {bootstrap_servers: ["127.0.0.1:9092"]%s}\nlisteners: [{bootstrap_port: 29092}]\n'
PLAIN = ", sasl: {mechanism: PLAIN, username: weir, password_file: pw}"


def advice_of_properties(text: str | None, tmp_path: Path, offered: tuple[str, ...]) -> str:
    path = tmp_path / "weir.properties"
    if text is not None:
        path.write_text(text)
    return by_properties(ADDRESS, None if text is None else path).advice(offered)


@pytest.mark.parametrize("text", [None, PROPERTIES], ids=["no file", "file"])
def test_properties_can_not_help_if_brokers_offer_kerberos_alone(text: str | None, tmp_path: Path) -> None:
    advice = advice_of_properties(text, tmp_path, ("GSSAPI",))
    assert advice.startswith("the brokers offer GSSAPI alone, which Weir itself can't use — enable SCRAM-SHA-512")
    assert "--command-config" not in advice


@pytest.mark.parametrize("sasl", ["", PLAIN], ids=["no login", "login"])
def test_config_can_not_help_if_brokers_offer_kerberos_alone(sasl: str, tmp_path: Path) -> None:
    access = by_config(None, parse_config(CONFIG % sasl, source="weir.yaml"), tmp_path / "weir.yaml")
    advice = access.advice(("GSSAPI",))
    assert advice.startswith("the brokers offer GSSAPI alone, which Weir itself can't use — enable SCRAM-SHA-512")
    assert "--command-config" not in advice


def test_remedy_names_the_mechanism_beside_kerberos(tmp_path: Path) -> None:
    advice = advice_of_properties(PROPERTIES, tmp_path, ("GSSAPI", "SCRAM-SHA-512"))
    assert advice.startswith("the brokers offer GSSAPI, SCRAM-SHA-512, not PLAIN — correct sasl.mechanism in ")
