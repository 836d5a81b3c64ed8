"""`weir init` at a stub broker. tests/broker has the way from a real broker to a running gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.commands import main
from gateway.config.load import load_config
from gateway.migration import init_command
from protocol.api_keys import ApiKey
from tests.gateway.migration.stub_cluster import ACCEPTED, StubCluster
from tests.gateway.migration.test_restore_file import full_disk
from tests.hostile.stub_broker import HOST


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    """The current directory is empty. The result does not depend on the programs that listen on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init_command, "_is_free", lambda *_address: True)
    with StubCluster() as running:
        yield running


def init(cluster: StubCluster, *arguments: str) -> int:
    return main(["init", "--bootstrap-server", cluster.bootstrap_servers, *arguments])


def test_ipv6_address_has_brackets(cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(cluster, "--advertised-host", "2001:db8::5") == 0
    (listener,) = load_config(Path("weir.yaml")).listeners
    assert listener.host == "::"
    assert f"clients connect to [2001:db8::5]:{listener.bootstrap_port}\n" in capsys.readouterr().out


INJECTED = '4L6g\x1b]0;title\x07\nquota_admins: ["User:mallory"]\n#'


def test_brokers_texts_add_no_line(cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.answer(error_code=33, mechanisms=[f"PLAIN{INJECTED}"])
    # The file has the first three addresses. Loopback ports without a broker refuse at once.
    addresses = [(cluster.port, HOST), (1, HOST), (2, HOST), (3, "h\x1b[31m\nost.invalid")]
    brokers = [{"node_id": number, "host": host, "port": port} for number, (port, host) in enumerate(addresses, 1)]
    cluster.answers[ApiKey.METADATA] = lambda request: request.answer(
        brokers=brokers, cluster_id=INJECTED, controller_id=1, topics=[]
    )
    assert init(cluster) == 0
    escaped = '4L6g\\x1b]0;title\\x07\\nquota_admins: ["User:mallory"]\\n#'
    written = Path("weir.yaml").read_text()
    assert f"# Weir in front of cluster {escaped} with brokers 1, 2, 3, 4. Written by `weir init`.\n" in written
    assert f"    # Clients authenticate with the brokers through Weir (PLAIN{escaped}); nothing to set.\n" in written
    assert load_config(Path("weir.yaml")).quota_admins == ()
    out, err = capsys.readouterr()
    assert out.startswith(f"weir.yaml: written for cluster {escaped} with brokers 1, 2, 3, 4\n")
    assert "\nwarning: broker 4 can't be reached at its advertised address h\\x1b[31m\\nost.invalid:3: " in err


def test_invalid_text_is_not_written(
    cluster: StubCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init_command, "first_config", lambda *_: "quotas: [")
    assert init(cluster) == 1
    assert capsys.readouterr().err.startswith("weir.yaml: not written, because Weir would refuse the file: (file)")
    assert list(Path().iterdir()) == []


def test_gateway_is_refused(cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.known_key = ACCEPTED
    assert init(cluster) == 1
    assert capsys.readouterr().err.startswith("the address is that of a Weir gateway")
    assert list(Path().iterdir()) == []


def test_half_a_config_is_removed(cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the next `weir init` refuses to overwrite it."""
    with full_disk(100):
        assert init(cluster) == 1
    assert "weir.yaml: can't be written: File too large — name a file in another folder" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("password", "largest_file", "unwritten"),
    [pytest.param("secret", 100, "weir.yaml", id="config"), pytest.param("p" * 30_000, 20_000, "weir.password", id="password")],
)
def test_failed_write_leaves_no_file(
    password: str, largest_file: int, unwritten: str, cluster: StubCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the next `weir init` refuses to overwrite the file that was written."""
    cluster.answers |= {
        ApiKey.SASL_HANDSHAKE: lambda request: request.answer(error_code=0, mechanisms=["PLAIN"]),
        ApiKey.SASL_AUTHENTICATE: lambda request: request.answer(error_code=0, error_message=None, auth_bytes=b""),
    }
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{password}";'
    client = tmp_path.parent / f"{tmp_path.name}.properties"
    client.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    with full_disk(largest_file):
        assert init(cluster, "--command-config", str(client)) == 1
    assert f"{unwritten}: can't be written: File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
