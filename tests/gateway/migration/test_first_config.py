"""The file of `weir init`: it is valid, it limits nobody, and each of its examples is valid as well."""

import re
import socket
from pathlib import Path

import pytest
import yaml

from gateway.config.endpoints import PortRange, ServerAddress
from gateway.config.load import load_config, parse_config
from gateway.migration import MigrationError, init_command
from gateway.migration.client_properties import ClientProperties, SaslLogin
from gateway.migration.first_config import EXAMPLES, ChosenPorts, FoundCluster, first_config
from gateway.migration.init_command import choose_ports
from gateway.proxy.tls.contexts import ClientTls

BROKERS = {1: ("kafka-1.example.com", 9092), 2: ("kafka-2.example.com", 9092), 3: ("::1", 9092), 4: ("kafka-4", 9092)}
PLAIN = ClientProperties("")
PORTS = ChosenPorts(29092, 100, 9644)
LOOPBACK = "127.88.7.1"
"""An address on which no other program of this machine listens."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports that are not free. Those of this machine depend on its other programs."""
    ports: set[int] = set()
    monkeypatch.setattr(init_command, "_is_free", lambda _host, port: port not in ports)
    return ports


def text(
    properties: ClientProperties = PLAIN,
    ports: ChosenPorts = PORTS,
    host: str | None = None,
    quotas: int | None = 0,
    mechanisms: tuple[str, ...] = (),
    password_file: Path | None = None,
) -> str:
    found = FoundCluster("4L6g", BROKERS, mechanisms, quotas)
    return first_config(found, [BROKERS[2]], properties, ports, host, password_file, "weir.yaml")


def test_file_names_the_brokers_and_limits_nobody() -> None:
    config = parse_config(text(), source="weir.yaml")
    assert config.upstream.bootstrap_servers == tuple(ServerAddress(*BROKERS[number]) for number in (2, 1, 3))
    assert (config.upstream.tls, config.upstream.sasl) == (None, None)
    (listener,) = config.listeners
    assert (listener.host, listener.bootstrap_port, listener.broker_ports) == ("127.0.0.1", 29092, PortRange(29093, 29192))
    assert config.warnings() == ["quotas.entities: is empty, so no client is limited — add entities"]
    on = [key for key in ("ledger", "sharing") if getattr(config, key) is not None]
    assert [*on, *(key for key in ("topics", "volumes") if getattr(config.quotas, key) is not None)] == []


def test_file_takes_over_tls_and_sasl(tmp_path: Path) -> None:
    tls = ClientTls(Path("ca.pem"), tmp_path / "own.pem", tmp_path / "own.pem", False, "1.2")
    properties = ClientProperties("client.properties", tls, SaslLogin("SCRAM-SHA-512", 'a "b"\\', "hidden"))
    written = text(properties, mechanisms=("SCRAM-SHA-512",), password_file=tmp_path / "weir.password")
    config = parse_config(written, source="weir.yaml")
    assert config.upstream.tls is not None
    assert config.upstream.tls.resolved(Path("/elsewhere")) == ClientTls(
        Path("ca.pem").absolute(), tmp_path / "own.pem", tmp_path / "own.pem", False, "1.2"
    )
    assert config.upstream.sasl is not None
    assert (config.upstream.sasl.username, config.upstream.sasl.password_file) == ('a "b"\\', "weir.password")
    assert "hidden" not in written
    assert "(SCRAM-SHA-512); nothing to set" in written


def test_file_with_an_advertised_host_binds_all_addresses() -> None:
    (listener,) = parse_config(text(host="weir.example.com"), source="weir.yaml").listeners
    assert (listener.host, listener.advertised_host) == ("0.0.0.0", "weir.example.com")


def test_ipv6_clients_can_connect() -> None:
    written = text(host="2001:db8::5")
    (listener,) = parse_config(written, source="weir.yaml").listeners
    assert (listener.host, listener.advertised_host) == ("::", "2001:db8::5")
    assert "# Clients connect to [2001:db8::5]:29092. " in written


@pytest.mark.parametrize("name", ["zo\u00eb", "\U0001f600", "a\x7fb", "a\u2028b", "\x85", "\u00a0", "\ufeff"])
def test_any_user_name_is_written(name: str) -> None:
    properties = ClientProperties("", None, SaslLogin("PLAIN", name, "hidden"))
    written = text(properties, password_file=Path("weir.password"))
    sasl = parse_config(written, source="weir.yaml").upstream.sasl
    assert sasl is not None
    assert sasl.username == name
    assert (name in written) == name.isprintable()


@pytest.mark.parametrize(
    ("quotas", "words"),
    [(None, "may not read"), (0, "no quotas of their own"), (1, "quotas for 1 entity,"), (20, "quotas for 20 entities,")],
)
def test_file_names_the_brokers_own_quotas(quotas: int | None, words: str) -> None:
    assert words in text(quotas=quotas)


@pytest.mark.parametrize("key", EXAMPLES)
def test_example_is_valid_without_its_comment_sign(key: str) -> None:
    example = EXAMPLES[key]
    assert f"# {example}\n" in text()
    section = key.rpartition(".")[0]
    data = yaml.safe_load(text().replace(f"# {example}\n", f"{example}\n"))
    if not section:  # the example of a top-level key replaces a key of the same name
        data |= yaml.safe_load(example)
    config = parse_config(yaml.safe_dump(data), source=key)
    changed = config.quotas if section else config
    assert key.rpartition(".")[2] in changed.model_fields_set


@pytest.mark.parametrize(
    ("mechanisms", "names"),
    [((), ["client-id=<default>", "client-id=etl"]), (("PLAIN",), ["user=<default>", "user=alice"])],
)
def test_examples_of_quotas_apply(mechanisms: tuple[str, ...], names: list[str]) -> None:
    """The user removes the comment signs, and nothing else. Without a login, all clients have one user."""
    uncommented, count = re.subn(r"(?m)^  # (entities:|  - \{.*\})$", r"  \1", text(mechanisms=mechanisms))
    assert count == 3
    config = parse_config(uncommented, source="weir.yaml")
    assert [str(row) for row in config.quotas.entities] == names
    assert config.warnings() == []


@pytest.mark.usefixtures("taken")
def test_wide_span_of_ids_gets_wide_ports() -> None:
    ports = choose_ports([7, 1_000], "127.0.0.1", ())
    assert ports.brokers == 994
    config = parse_config(text(ports=ports), source="weir.yaml")
    assert config.listeners[0].broker_ports == PortRange(ports.bootstrap + 1, ports.bootstrap + 994)


@pytest.mark.parametrize("broker", [0, 99])
def test_taken_port_is_avoided(broker: int, taken: set[int]) -> None:
    free = choose_ports([broker], "127.0.0.1", ())
    taken.add(free.bootstrap + 1 + broker)
    assert choose_ports([broker], "127.0.0.1", ()).bootstrap != free.bootstrap


def test_port_of_a_listening_program_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as program, socket.socket() as bound:
        program.bind((LOOPBACK, 0))
        program.listen()
        bound.bind((LOOPBACK, 0))
        taken, free = program.getsockname()[1], bound.getsockname()[1]
        bound.close()
        monkeypatch.setattr(init_command, "_BOOTSTRAP_PORTS", (taken, free))
        monkeypatch.setattr(init_command, "USUAL_BROKER_PORTS", 1)
        assert choose_ports([0], LOOPBACK, ()).bootstrap == free


@pytest.mark.usefixtures("taken")
def test_ports_are_below_those_of_outgoing_connections() -> None:
    """Linux gives 32768 and the ports above it to outgoing connections."""
    used: set[int] = set()
    for _ in range(7):
        ports = choose_ports([0], "127.0.0.1", used)
        assert ports.bootstrap + ports.brokers < 32_768
        used.add(ports.bootstrap)
    with pytest.raises(MigrationError, match=r"no range of 101 ports from 29092, .*, 13092 on is free"):
        choose_ports([0], "127.0.0.1", used)


def test_admin_port_is_not_the_volume_agents(taken: set[int]) -> None:
    assert choose_ports([0], "127.0.0.1", ()).admin == 9644
    taken.add(9644)
    assert choose_ports([0], "127.0.0.1", ()).admin == 9646


@pytest.mark.usefixtures("taken")
def test_range_holds_no_port_of_a_broker() -> None:
    free = choose_ports([0], "127.0.0.1", ())
    last = free.bootstrap + free.brokers
    for port in (free.bootstrap, last):
        assert choose_ports([0], "127.0.0.1", {port}).bootstrap != free.bootstrap
    assert choose_ports([0], "127.0.0.1", {last + 1}) == free


def test_too_wide_a_span_of_ids_is_refused() -> None:
    with pytest.raises(MigrationError, match="no range of 60001 ports"):
        choose_ports([0, 59_999], "127.0.0.1", ())


def test_loaded_file_is_the_written_one(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    path.write_text(text())
    assert load_config(path) == parse_config(text(), source="weir.yaml")
