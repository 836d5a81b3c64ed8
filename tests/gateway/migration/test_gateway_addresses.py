"""Commands recognise a gateway by its answers to requests that change nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.alter_queue import denied
from gateway.commands import main
from gateway.migration import MigrationError
from gateway.migration.access import by_properties
from gateway.migration.broker_admin import BrokerAdmin, GatewayAddressError, NotAllowedError
from protocol.api_keys import ApiKey
from tests.gateway.migration.stub_cluster import ACCEPTED, INVALID_KEY, StubCluster
from tests.hostile.stub_broker import HOST

CONFIG = """\
upstream: {{bootstrap_servers: ["{servers}"]}}
listeners: [{{bootstrap_port: 1024}}]
quotas: {{entities: [{{user: alice, producer_byte_rate: 1000}}]}}
"""
NO_ALTER_CONFIGS = (31, "Cluster authorization failed.")


@pytest.fixture
def cluster() -> Iterator[StubCluster]:
    with StubCluster() as running:
        yield running


@pytest.mark.parametrize(
    ("known_key", "groups", "error"),
    [
        (ACCEPTED, 35, GatewayAddressError),
        ((31, denied("weir")), 35, GatewayAddressError),
        (NO_ALTER_CONFIGS, 0, GatewayAddressError),
        (NO_ALTER_CONFIGS, 35, None),
        (NO_ALTER_CONFIGS, 31, NotAllowedError),
        (INVALID_KEY, 0, None),
        ((41, "This is not the controller."), 35, MigrationError),
    ],
    ids=["admin", "no admin", "broker_acls", "reader at broker", "no reader", "broker", "unclear"],
)
async def test_only_brokers_answer_passes(
    cluster: StubCluster, known_key: tuple[int, str | None], groups: int, error: type[MigrationError] | None
) -> None:
    cluster.known_key, cluster.groups = known_key, groups
    async with BrokerAdmin(by_properties(((HOST, cluster.port),), None)) as admin:
        if error is None:
            await admin.refuse_gateway()
            return
        with pytest.raises(MigrationError) as found:
            await admin.refuse_gateway()
        assert type(found.value) is error


async def test_lost_broker_is_no_broker(cluster: StubCluster) -> None:
    cluster.answers[ApiKey.ALTER_CLIENT_QUOTAS] = lambda _: False
    async with BrokerAdmin(by_properties(((HOST, cluster.port),), None)) as admin:
        with pytest.raises(MigrationError, match="closed without an answer"):
            await admin.refuse_gateway()


def lift(cluster: StubCluster, folder: Path) -> int:
    config = folder / "weir.yaml"
    config.write_text(CONFIG.format(servers=cluster.bootstrap_servers))
    return main(["quotas", "lift", "--config", str(config), "--restore-file", str(folder / "restore.json"), "--yes"])


def test_lift_at_broker_removes_its_quotas(cluster: StubCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lift(cluster, tmp_path) == 0
    assert cluster.removed == 1
    assert "lifted 1 quotas" in capsys.readouterr().out


def test_lift_refuses_gateway_before_a_change(cluster: StubCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.known_key = ACCEPTED
    assert lift(cluster, tmp_path) == 1
    assert capsys.readouterr().err.startswith("the address is that of a Weir gateway, which answers with its own quotas — ")
    assert (cluster.removed, (tmp_path / "restore.json").exists()) == (0, False)


def test_lift_asks_again_before_it_removes(cluster: StubCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a balancer, the address may be another process after the confirmation."""
    cluster.known_key_after_check = ACCEPTED
    assert lift(cluster, tmp_path) == 1
    assert "that of a Weir gateway" in capsys.readouterr().err
    assert (cluster.removed, (tmp_path / "restore.json").exists()) == (0, False)
