"""The three commands with wrong inputs: each error has the value, the reason and the remedy, and no traceback."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gateway.alter_queue import denied
from gateway.cluster import discovery
from gateway.commands import main
from gateway.config.load import parse_config
from gateway.migration import MigrationError, broker_admin
from gateway.migration.access import access_of, addresses, by_properties, check_not_gateway
from gateway.migration.broker_admin import BrokerAdmin, GatewayAddressError, NotAllowedError
from gateway.migration.broker_quotas import entity_of
from gateway.migration.lift_command import _running_quotas
from loadtest.testkit.kafka import free_port
from tests.gateway.admin.test_table import answering
from tests.gateway.migration.stub_cluster import StubCluster

CONFIG = """\
upstream: {{bootstrap_servers: ["127.0.0.1:{port}"]}}
listeners:
  - {{name: clients, bootstrap_port: 9092, broker_ports: 9093-9095, advertised_host: Weir.example.com}}
  - {{name: local, bootstrap_port: 10092}}
quotas: {{entities: [{{user: alice, producer_byte_rate: 100000}}]}}
"""
RESTORE = '{"format": "weir-quotas-restore", "version": 1, "written_at": "x", "cluster_id": "c", "bootstrap_servers": ["%s"],\
 "lifted": [{"entity": {"user": "a"}, "quotas": {"producer_byte_rate": 1.0}}], "kept": []}'


@pytest.fixture
def nobody() -> str:
    """An address without a server."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def config(tmp_path: Path, nobody: str) -> Path:
    path = tmp_path / "weir.yaml"
    path.write_text(CONFIG.format(port=nobody.partition(":")[2]))
    return path


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error message of a command that fails."""
    assert main(["quotas", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


def usage(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error message of a command that is used in a wrong way."""
    with pytest.raises(SystemExit) as error:
        main(arguments)
    out, err = capsys.readouterr()
    assert (error.value.code, out) == (2, "")
    return err


def login_file(folder: Path, password: str = "x") -> Path:
    """A properties file with SASL."""
    path = folder / "weir.properties"
    login = f'required username="weir" password="{password}";'.replace("\\", "\\\\")
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule {login}\n"
    )
    return path


@pytest.mark.parametrize("command", ["import", "lift"])
@pytest.mark.parametrize("named", [True, False])
def test_unreachable_broker_is_named(config: Path, nobody: str, command: str, named: bool, capsys) -> None:
    """Without --bootstrap-server, the brokers are those of the config."""
    servers = ["--bootstrap-server", nobody] if named else []
    found = failure(capsys, command, "--config", str(config), *servers)
    remedy = "--bootstrap-server and --command-config" if named else f"upstream.bootstrap_servers and upstream.tls in {config}"
    assert found == f"{nobody} can't be reached: Connection refused — check {remedy}\n"


def test_restore_connects_to_the_brokers_of_the_lift(tmp_path: Path, nobody: str, capsys) -> None:
    path = tmp_path / "restore.json"
    path.write_text(RESTORE % nobody)
    assert failure(capsys, "restore", str(path)).startswith(f"{nobody} can't be reached: Connection refused — ")


def test_unreachable_gateway_is_named(config: Path, capsys) -> None:
    admin = f"http://127.0.0.1:{free_port()}"
    found = failure(capsys, "lift", "--config", str(config), "--admin", admin)
    cause = f"--admin: {admin}/api/config can't be reached: Connection refused"
    assert found == f"{cause} — start the gateway, or name its admin.host and admin.port with --admin\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=421, text="add the name to admin.allowed_hosts\n"), "refuses the request: add the name to admin"),
        (web.json_response({"warnings": []}), r"answers, but not as Weir does \('config'\) — name Weir's admin\.host"),
    ],
)
async def test_unusable_answer_of_a_gateway_is_explained(answer: web.Response, words: str) -> None:
    async with answering(answer) as url:
        with pytest.raises(MigrationError, match=f"^--admin:? {url}.* {words}"):
            await _running_quotas(url, 1)


class Refusing(BrokerAdmin):
    """Gets CLUSTER_AUTHORIZATION_FAILED with this message for each request."""

    message: str | None = None

    async def _ask(self, request: Any, address: Any = None) -> Any:
        return SimpleNamespace(error_code=31, error_message=self.message)


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (
            None,
            NotAllowedError,
            "the user weir: it lacks the right DescribeConfigs on the cluster — .*--allow-principal User:weir ",
        ),
        (denied("weir"), GatewayAddressError, "that of a Weir gateway"),
    ],
    ids=["broker", "gateway"],
)
async def test_refusal_names_the_user_or_the_gateway(
    message: str | None, error: type[MigrationError], words: str, tmp_path: Path
) -> None:
    properties = login_file(tmp_path)
    access = by_properties((("127.0.0.1", 9),), properties)
    assert access.arguments == f" --command-config {properties}"
    async with Refusing(access) as admin:
        admin.message = message
        with pytest.raises(error, match=words):
            await admin.describe()


def test_unknown_host_is_named(config: Path, capsys) -> None:
    found = failure(capsys, "import", "--config", str(config), "--bootstrap-server", "nowhere.invalid:9092")
    assert found.startswith("nowhere.invalid:9092 can't be reached: ")


def test_a_server_that_is_no_broker_is_named(config: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(discovery, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]
        settings = config.with_name("quick.properties")
        settings.write_text("request.timeout.ms=200\n")
        arguments = ["--bootstrap-server", f"127.0.0.1:{port}", "--command-config", str(settings)]
        assert f"127.0.0.1:{port} can't be reached: no answer within" in failure(
            capsys, "import", "--config", str(config), *arguments
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "{folder}/weir.yaml"], "{folder}/weir.yaml: exists, and init overwrites no file — remove it"),
        (["--out", "{folder}/link"], "{folder}/link: exists, and init overwrites no file — remove it"),
        (["--out", "{folder}"], "{folder}: is a folder — name a new file in it with --out"),
        (["--out", "{folder}/none/weir.yaml"], "{folder}/none/weir.yaml: the folder {folder}/none does not exist — create it"),
        (["--out", "."], ".: is a folder — name a new file in it with --out"),
        (["--out", ""], ".: is a folder — name a new file in it with --out"),
    ],
)
@pytest.mark.parametrize("sasl", [False, True])
def test_init_checks_its_options_before_it_connects(
    config: Path, nobody: str, arguments: list[str], message: str, sasl: bool, monkeypatch, capsys
) -> None:
    empty = config.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    (config.parent / "link").symlink_to("nowhere")
    given = [text.format(folder=config.parent) for text in arguments]
    if sasl:
        given += ["--command-config", str(login_file(config.parent))]
    assert main(["init", "--bootstrap-server", nobody, *given]) == 1
    assert capsys.readouterr().err.startswith(message.format(folder=config.parent))


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("weir.password", "x", "weir.password: is the name of the file for the password — name a file with another ending"),
        ("weir.yaml", r"x\ny", "--command-config: the password has several lines, and Weir reads one — "),
    ],
)
def test_init_needs_a_file_for_the_password(
    tmp_path: Path, nobody: str, name: str, password: str, message: str, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = login_file(tmp_path, password=password)
    assert main(["init", "--bootstrap-server", nobody, "--command-config", str(settings), "--out", name]) == 1
    assert capsys.readouterr().err.startswith(message)
    assert list(tmp_path.iterdir()) == [settings]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "--bootstrap-server", "127.0.0.1"], "--bootstrap-server: '127.0.0.1' is not an address — write"),
        (["init", "--bootstrap-server", "b:1", "--advertised-host", "a b"], "'a b' is not a host name or address — write one"),
        (["init", "--bootstrap-server", "b:1", "--advertised-host", "weir:9092"], "'weir:9092' is not a host name or address"),
        (["init", "--bootstrap-server", "b:1", "--advertised-host", "0.0.0.0"], "'0.0.0.0' is a wildcard address, and no"),
        (["init", "--bootstrap-server", "b:1", "--out", "a\nb"], "--out: 'a\\nb' has characters that can't be printed — name"),
        (["quotas", "import", "--config", "{config}", "--bootstrap-server", "b"], "--bootstrap-server: 'b' is not an address"),
        (["quotas", "lift", "--config", "{config}", "--bootstrap-server", "b"], "--bootstrap-server: 'b' is not an address"),
        (["quotas", "restore", "{restore}", "--bootstrap-server", "b"], "--bootstrap-server: 'b' is not an address"),
    ],
)
def test_wrong_option_is_wrong_usage(config: Path, nobody: str, arguments: list[str], message: str, capsys) -> None:
    restore = config.with_name("restore.json")
    restore.write_text(RESTORE % nobody)
    assert usage(capsys, *(text.format(config=config, restore=restore) for text in arguments)).count(message) == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell without job control starts background commands with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("command", ["_init", "_import", "_lift", "_restore"])
def test_interrupted_command_is_not_done(
    config: Path, nobody: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C at any moment."""
    restore = config.with_name("restore.json")
    restore.write_text(RESTORE % nobody)
    monkeypatch.setattr(BrokerAdmin, "cluster", interrupt)
    arguments = {
        "_init": ["init", "--bootstrap-server", nobody, "--out", str(config.with_name("new.yaml"))],
        "_import": ["quotas", "import", "--config", str(config)],
        "_lift": ["quotas", "lift", "--config", str(config), "--restore-file", str(config.with_name("lifted.json"))],
        "_restore": ["quotas", "restore", str(restore)],
    }
    assert main(arguments[command]) == 130
    assert capsys.readouterr().err.startswith("interrupted")


@pytest.mark.usefixtures("interruptible")
def test_interrupted_removal_names_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BrokerAdmin, "alter_in_waves", interrupt)
    restore = tmp_path / "restore.json"
    with StubCluster() as cluster:
        config = tmp_path / "weir.yaml"
        config.write_text(CONFIG.format(port=cluster.port).replace("100000", "1000"))
        assert main(["quotas", "lift", "--config", str(config), "--restore-file", str(restore), "--yes"]) == 130
    assert capsys.readouterr().err.startswith(f"interrupted; some quotas may be gone: `weir quotas restore {restore}")


async def interrupt(*_: BrokerAdmin) -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("", "{file}: is a folder — name a new file in it with --restore-file"),
        (
            "none/restore.json",
            "{file}: the folder {folder}/none does not exist — create it, or name another file with --restore-file",
        ),
    ],
)
def test_lift_checks_its_restore_file_before_it_connects(config: Path, file: str, message: str, capsys) -> None:
    path = config.parent / file
    found = failure(capsys, "lift", "--config", str(config), "--restore-file", str(path))
    assert found == message.format(file=path, folder=config.parent) + "\n"


@pytest.mark.parametrize("text", ["broker1", "broker1:port", "http://broker1:9092", "broker1:9092,", ""])
def test_wrong_addresses_are_named(config: Path, text: str, capsys) -> None:
    found = usage(capsys, "quotas", "import", "--config", str(config), "--bootstrap-server", text)
    assert "error: --bootstrap-server: " in found
    assert 'is not an address — write "host:port" of a broker' in found


def test_several_addresses_are_read() -> None:
    assert addresses("broker1:9092, [::1]:9093") == (("broker1", 9092), ("::1", 9093))


@pytest.mark.parametrize("address", ["weir.example.com:9092", "127.0.0.1:9095", "localhost:10092", "127.0.0.1:10093"])
def test_weirs_own_listener_is_refused(config: Path, address: str, capsys) -> None:
    for command in ("import", "lift"):
        found = failure(capsys, command, "--config", str(config), "--bootstrap-server", address)
        assert "of this gateway, which answers with its own quotas — name a broker's own address" in found


@pytest.mark.parametrize(("address", "own"), [("broker-7.kafka.example.com", True), ("broker-x.kafka.example.com", False)])
def test_brokers_by_server_name_are_weirs_own(config: Path, address: str, own: bool) -> None:
    text = config.read_text().replace(
        "{name: local, bootstrap_port: 10092}",
        "{name: tls, bootstrap_port: 10092, advertised_host: kafka.example.com, tls: {cert: c, key: k},"
        ' sni: "broker-{id}.kafka.example.com:9092"}',
    )
    parsed = parse_config(text, source="weir.yaml")
    with pytest.raises(MigrationError, match="is the listener tls of this gateway") if own else nullcontext():
        check_not_gateway(parsed, [(address, 9092)])


def test_wildcard_listener_is_refused_at_loopback(config: Path) -> None:
    text = config.read_text().replace("{name: local,", "{name: all, host: 0.0.0.0, advertised_host: weir.example.com,")
    with pytest.raises(MigrationError, match=r"127\.0\.0\.1:10092 is the listener all of this gateway"):
        check_not_gateway(parse_config(text, source="weir.yaml"), [("127.0.0.1", 10092)])


def test_other_ports_and_hosts_are_no_listeners(config: Path) -> None:
    parsed = parse_config(config.read_text(), source="weir.yaml")
    check_not_gateway(parsed, [("127.0.0.1", 9096), ("broker1", 9092), ("weir.example.com", 10092)])


@pytest.mark.parametrize("command", ["import", "lift", "restore"])
def test_missing_files_are_named(tmp_path: Path, command: str, capsys) -> None:
    path = str(tmp_path / "nowhere")
    assert main(["quotas", command, *([path] if command == "restore" else ["--config", path])]) == 1
    assert path in "".join(capsys.readouterr())


def test_files_of_the_properties_are_checked(config: Path, nobody: str, capsys) -> None:
    settings = config.with_name("admin.properties")
    settings.write_text("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nowhere/ca.pem\n")
    arguments = ["--config", str(config), "--bootstrap-server", nobody, "--command-config", str(settings)]
    found = failure(capsys, "import", *arguments)
    assert (
        found == f"{settings}: /nowhere/ca.pem can't be used: No such file or directory — name PEM files that Weir can read."
        f" Relative paths start at the current directory, {Path.cwd()}\n"
    )
    (config.parent / "ca.pem").write_text("not PEM")
    settings.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={config.parent}/ca.pem\n")
    assert "ca.pem can't be used: " in failure(capsys, "import", *arguments)


@pytest.mark.parametrize("number", ["0", "x", "1" * 5_000])
def test_brokers_must_be_a_number(config: Path, capsys, number: str) -> None:
    with pytest.raises(SystemExit) as error:
        main(["quotas", "lift", "--config", str(config), "--brokers", number])
    assert error.value.code == 2
    assert f"{number[:40]!r} is not a number of brokers — give 1 or more" in capsys.readouterr().err


def test_address_is_needed_without_a_config() -> None:
    with pytest.raises(MigrationError, match="--bootstrap-server: is missing"):
        access_of(None, None, None, None)


@pytest.mark.parametrize(("sizes", "parts"), [([], []), ([1], [1]), ([999, 1000, 1], [2000]), ([1500, 501], [1500, 501]),
                                             ([5000, 1], [5000, 1])])  # fmt: skip
def test_large_alterations_are_several_requests(sizes: list[int], parts: list[int]) -> None:
    changes = {entity_of({"user": str(number)}): {str(key): None for key in range(size)} for number, size in enumerate(sizes)}
    assert [sum(map(len, part.values())) for part in broker_admin._parts(changes)] == parts
