"""The `sasl` sections of upstream and listeners: parsed values, and messages without secrets."""

from pathlib import Path

import pytest

from gateway.config.load import load_config
from gateway.config.problems import ConfigError
from tests.gateway.config.texts import LISTENERS, listeners, parsed, problems_of

SCRAM = "{mechanism: SCRAM-SHA-512, username: weir, password_file: pw}"
TOKEN = "{mechanism: OAUTHBEARER, token_file: /run/token}"


def upstream(sasl: str) -> str:
    return LISTENERS + f'upstream: {{bootstrap_servers: ["127.0.0.1:9092"], sasl: {sasl}}}\n'


def listener(sasl: str) -> str:
    return listeners(f"{{name: clients, bootstrap_port: 29092, sasl: {sasl}}}")


def only_problem(text: str) -> str:
    (problem,) = problems_of(text)
    return str(problem)


def test_upstream_credentials_are_read() -> None:
    sasl = parsed(upstream(SCRAM)).upstream.sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.secret_file(Path("/etc/weir"))) == (
        "SCRAM-SHA-512",
        "weir",
        Path("/etc/weir/pw"),
    )
    sasl = parsed(upstream(TOKEN)).upstream.sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.secret_file(Path("/etc/weir"))) == ("OAUTHBEARER", Path("/run/token"))


def test_sasl_requirement_follows_brokers_by_default() -> None:
    (plain,) = parsed(listener("{}")).listeners
    assert (plain.sasl.required, plain.sasl.principal_claim) == (None, "sub")
    assert (plain.sasl.max_frame_bytes, plain.sasl.timeout_seconds) == (524_288, 30.0)
    text = "{required: true, principal_claim: azp, max_frame_bytes: 4096, timeout_seconds: 2.5}"
    (own,) = parsed(listener(text)).listeners
    assert (own.sasl.required, own.sasl.principal_claim) == (True, "azp")
    assert (own.sasl.max_frame_bytes, own.sasl.timeout_seconds) == (4_096, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (upstream("{mechanism: PLAIN}"), "has mechanism PLAIN without username and password_file"),
        (upstream("{mechanism: PLAIN, username: weir}"), "without password_file"),
        (upstream("{mechanism: OAUTHBEARER}"), "without token_file"),
        (
            upstream("{mechanism: OAUTHBEARER, token_file: t, username: weir}"),
            "has username, which OAUTHBEARER does not use",
        ),
        (upstream("{mechanism: SCRAM-SHA-256, username: w, password_file: p, token_file: t}"), "has token_file, which SCRAM"),
        (upstream("{mechanism: GSSAPI}"), 'login by Kerberos (value "GSSAPI"'),
        (upstream("{mechanism: EXTERNAL}"), 'is not a choice (value "EXTERNAL"'),
        (upstream("{username: weir, password_file: pw}"), "upstream.sasl.mechanism: is missing"),
        (listener("{required: 1}"), "listeners[0].sasl.required: must be true or false"),
        (listener("{max_frame_bytes: 10}"), "must be at least 1024"),
        (listener("{timeout_seconds: 0}"), "must be above 0"),
        (listener("{mechanism: PLAIN}"), "it belongs under upstream.sasl"),
    ],
)
def test_invalid_sasl_value_is_named(text: str, message: str) -> None:
    assert message in only_problem(text)


@pytest.mark.parametrize(
    ("sasl", "tls", "warned"),
    [(SCRAM, "", False), (TOKEN, "", True), (TOKEN, ", tls: {}", False)],
    ids=["scram", "token", "tls"],
)
def test_secret_on_a_readable_connection_warns(sasl: str, tls: str, warned: bool) -> None:
    text = upstream(f"{sasl}{tls}")
    assert any("sends the secret in plain text" in line for line in parsed(text).warnings()) is warned


@pytest.mark.parametrize(
    ("sasl", "row", "warned"),
    [
        (TOKEN, "host: 0.0.0.0", True),
        (TOKEN, "host: kafka.example.com", True),
        (TOKEN, "host: 127.0.0.1", False),
        (TOKEN, "host: localhost", False),
        (TOKEN, "host: 0.0.0.0, tls: {cert: c, key: k}", False),
        (SCRAM, "host: 0.0.0.0", False),
    ],
)
def test_secrets_of_clients_on_a_readable_listener_warn(sasl: str, row: str, warned: bool) -> None:
    servers = f'upstream: {{bootstrap_servers: ["kafka:9092"], tls: {{}}, sasl: {sasl}}}\n'
    more = f"advertised_host: weir.example.com, bootstrap_port: 29092, {row}"
    text = servers + f"listeners: [{{name: a, {more}}}]\n"
    found = [line for line in parsed(text).warnings() if "secrets of clients" in line]
    assert [line.partition(": ")[0] for line in found] == (["listeners[0].tls"] if warned else [])


def test_missing_secret_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weir.yaml").write_text(upstream(SCRAM))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "weir.yaml")
    (problem,) = caught.value.problems
    assert problem.key == "upstream.sasl.password_file"
    assert problem.message == "names a file that can't be read: No such file or directory"
    (tmp_path / "pw").write_text("hunter2\n")
    assert load_config(tmp_path / "weir.yaml").upstream.sasl is not None


@pytest.mark.parametrize("key", ["password", "token", "passwrod", "sasl_password", "secret"])
def test_messages_show_no_secret(key: str) -> None:
    message = only_problem(upstream(f"{{mechanism: PLAIN, username: weir, password_file: pw, {key}: hunter2}}"))
    assert f"upstream.sasl.{key}" in message
    assert "hunter2" not in message
    assert "_file" in message
