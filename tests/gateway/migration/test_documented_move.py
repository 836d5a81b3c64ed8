"""The whole guide docs/how-to/migrate-quotas.md at a stub cluster, with a higher rate for the gateway's own address."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands import main
from gateway.config.entities import entity_quota
from gateway.config.model import WeirConfig
from gateway.migration.broker_admin import Cluster
from gateway.migration.broker_quotas import BrokerQuotas, entity_of, translated
from gateway.migration.import_command import import_text
from gateway.migration.lift_command import LiftOptions, _text
from gateway.migration.lift_rules import GatewayQuotas
from tests.gateway.migration.stub_cluster import Entity, StubCluster
from tests.test_docs import DOCS

GUIDE = (DOCS / "how-to" / "migrate-quotas.md").read_text()
DEFAULT_IP: Entity = (("ip", None),)
WEIR: Entity = (("ip", "127.0.0.1"),)
QUOTAS: dict[Entity, dict[str, float]] = {
    (("user", "alice"),): {"producer_byte_rate": 1048576.0},
    (("user", None),): {"producer_byte_rate": 500000.0},
    DEFAULT_IP: {"connection_creation_rate": 5.0},
}


@pytest.fixture
def cluster() -> Iterator[StubCluster]:
    with StubCluster() as running:
        running.quotas = {entity: dict(quotas) for entity, quotas in QUOTAS.items()}
        yield running


class Operator:
    """Follows the guide's steps in a folder with a weir.yaml."""

    def __init__(self, folder: Path, cluster: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = folder / "weir.yaml"
        self._saved = folder / "restore.json"
        self._capsys = capsys
        self._content: dict[str, Any] = {
            "upstream": {"bootstrap_servers": [cluster.bootstrap_servers]},
            "listeners": [{"bootstrap_port": 1024}],
        }
        self.writes(entities=[])

    def writes(self, **quotas: object) -> None:
        """Change keys of the section `quotas`."""
        self._content["quotas"] = self._content.get("quotas", {}) | quotas
        self._config.write_text(yaml.safe_dump(self._content))

    def imports(self) -> tuple[str, Any]:
        """(the output, the rows in it)"""
        out = self._runs("quotas", "import", "--config", str(self._config))
        return out, yaml.safe_load(out)["quotas"]["entities"]

    def checks(self) -> None:
        self._runs("check", "--config", str(self._config))

    def lifts(self, *options: str) -> str:
        return self._runs("quotas", "lift", "--config", str(self._config), "--restore-file", str(self._saved), *options)

    def restores(self) -> str:
        return self._runs("quotas", "restore", str(self._saved))

    def _runs(self, *arguments: str) -> str:
        code = main(arguments)
        out, err = self._capsys.readouterr()
        assert (code, err) == (0, "")
        return out


def test_quotas_move_with_the_gateways_own_address(
    tmp_path: Path, cluster: StubCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(tmp_path, cluster, capsys)
    cluster.quotas[WEIR] = {"connection_creation_rate": 10000.0}
    before = {entity: dict(quotas) for entity, quotas in cluster.quotas.items()}

    _, rows = operator.imports()
    operator.writes(enforce=False, window={"samples": 2, "seconds": 1}, entities=rows)
    operator.checks()
    assert "0 added, 0 changed, 4 the same" in operator.imports()[0]
    operator.writes(enforce=True)
    assert "dry run" in operator.lifts("--dry-run")
    assert cluster.quotas == before
    operator.lifts("--yes")
    assert cluster.quotas == {}
    assert cluster.altered.index(DEFAULT_IP) < cluster.altered.index(WEIR), "Weir never falls back to the default's rate"

    cluster.altered.clear()
    operator.restores()
    assert cluster.quotas == before
    assert cluster.altered.index(WEIR) < cluster.altered.index(DEFAULT_IP)


SAMPLE = Cluster("ehcG5vz0T1auY6tArk1MNQ", dict.fromkeys(range(3), ("broker", 9092)))
"""The cluster and the quotas of the guide's samples."""

SAMPLE_QUOTAS: BrokerQuotas = {
    entity_of({"user": "alice"}): {
        "producer_byte_rate": 1048576.0,
        "consumer_byte_rate": 2097152.0,
        "request_percentage": 50.0,
    },
    entity_of({"user": "bob"}): {"controller_mutation_rate": 10.0},
    entity_of({"user": None}): {"producer_byte_rate": 500000.0},
}


def test_guide_shows_the_output_of_import() -> None:
    rows = [entity_quota({"user": "admin", "exempt": True}), entity_quota({"user": "alice", "producer_byte_rate": 1048576})]
    text = import_text(SAMPLE, translated(SAMPLE_QUOTAS, 3), rows, "weir.yaml")
    assert f"$ cat quotas.yaml\n{text.rstrip()}\n```\n" in GUIDE


def test_guide_shows_the_output_of_lift() -> None:
    text = GUIDE.partition("$ cat quotas.yaml\n")[2].partition("```")[0]
    entities = yaml.safe_load(text)["quotas"]["entities"]
    config = WeirConfig.model_validate(
        {
            "upstream": {"bootstrap_servers": ["broker1:9092"]},
            "listeners": [{"bootstrap_port": 1024}],
            "quotas": {"window": {"samples": 2, "seconds": 1}, "entities": entities},
        }
    )
    options = LiftOptions(Path("weir-quotas-restore.json"), ["http://127.0.0.1:9644"])
    file = GatewayQuotas("weir.yaml", True, config.quotas.entities)
    shown = _text(config, SAMPLE, translated(SAMPLE_QUOTAS, 3), file, options)
    assert f"--dry-run\n{shown}\ndry run: " in GUIDE


def test_guide_sets_the_gateways_rate_before_the_import() -> None:
    """Otherwise step 3 shows a difference, and the lift refuses."""
    steps = [GUIDE.index("--entity-name WEIR_ADDRESS --add-config"), GUIDE.index("$ weir quotas import"), GUIDE.index("## 2. ")]
    assert steps == sorted(steps)
    assert "--delete-config" not in GUIDE
