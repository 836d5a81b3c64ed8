"""The reference agrees with the code: generated pages are up to date, and facts of the other pages are true."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.forgive import MAX_BODY_BYTES
from gateway.admin.live import MAX_VIEWERS
from gateway.admin.metrics.registry import METRICS
from gateway.commands import main
from gateway.config.load import MAX_CONFIG_BYTES, parse_config
from gateway.config.model import WeirConfig
from gateway.config.sasl import UpstreamSaslConfig
from gateway.config.topic_keys import OWN_TOPICS
from gateway.features.notify.config import MAX_TARGETS
from gateway.features.quota_api.feature import PATIENCE_SECONDS
from gateway.features.sharing.config import SharingConfig
from gateway.workers.families import WORKER_METRICS
from loadtest.testkit.kafka.sasl import MECHANISMS
from tests.helm.test_helm_chart import KUBERNETES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
GENERATOR: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "reference"), run_name="reference")
KEYS = list(GENERATOR["configuration"].all_keys())


@pytest.mark.parametrize("name", GENERATOR["PAGES"])
def test_page_is_up_to_date(name: str) -> None:
    current = (FOLDER / name).read_text("utf-8") == GENERATOR["PAGES"][name]()
    assert current, f"docs/reference/{name} differs from the code — run `make reference`, and look at the change"


@pytest.mark.parametrize("row", [*METRICS, *WORKER_METRICS], ids=lambda row: row.name)
def test_each_metric_has_a_use(row: Any) -> None:
    lines = re.findall(rf"(?m)^\| `{row.name}` \|.*$", (FOLDER / "metrics.md").read_text("utf-8"))
    assert len(lines) == 1, f"docs/reference/metrics.md has not one line for {row.name} — run `make reference`"
    use = lines[0].split(" | ")[-1].strip(" |")
    assert use, f"{row.name} has no use — name one in OWN_QUERIES of .ci/reference/metric_rows.py"


def test_smallest_config_is_valid_without_warnings() -> None:
    text = (FOLDER / "configuration.md").read_text("utf-8")
    config = parse_config(text.partition("```yaml\n")[2].partition("```")[0], source="configuration.md")
    assert config.warnings() == []


def test_each_command_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"(?m)^    (\w+) {2,}", capsys.readouterr().out)
    page = (FOLDER / "command-line.md").read_text("utf-8")
    assert {"serve", "check", "quotas"} <= set(commands)
    assert [name for name in commands if f"\n## weir {name}\n" not in page] == []


def test_each_chart_value_has_a_meaning() -> None:
    page = (FOLDER / "chart-values.md").read_text("utf-8")
    sections = re.findall(r"(?m)^## `(\w+)`\n\n(.*)$", page)
    assert [name for name, about in sections if not about or about.startswith("|")] == []
    rows = re.findall(r"(?m)^\| `(\w+)` \|.*\| (.*) \|$", page.partition("## Other values")[2])
    assert [name for name, meaning in rows if not meaning] == []


def test_compatibility_names_what_is_tested() -> None:
    page = (FOLDER / "compatibility.md").read_text("utf-8")
    always = re.findall(r"<kafka.version>(.*?)<", (ROOT / "loadtest/testkit/kafka/pom.xml").read_text("utf-8"))
    by_hand = re.findall(r"(?m)^KAFKA := (.*)$", (ROOT / "Makefile").read_text("utf-8"))
    assert set(re.findall(r"Apache Kafka[^\n]*?(\d+\.\d+\.\d+)", page)) == {*always, *by_hand}
    tests = set(re.findall(r"`(test_\w+\.py)`", page))
    assert [name for name in tests if not (ROOT / "tests" / "broker" / name).exists()] == []
    assert {path.name for path in (ROOT / "tests" / "broker").glob("test_clients_*.py")} <= tests
    assert [name for name in MECHANISMS if name not in page] == []
    own = UpstreamSaslConfig.model_json_schema()["properties"]["mechanism"]["enum"]
    assert [name for name in own if name not in page.partition("Weir's own connections")[2]] == []
    assert " and ".join(KUBERNETES) in page


def test_acls_name_each_topic_of_weir() -> None:
    page = (FOLDER / "acls.md").read_text("utf-8")
    defaults = re.findall(r"`(__weir_\w+)`", (FOLDER / "configuration.md").read_text("utf-8"))
    assert set(defaults) == set(re.findall(r"Topic `(__weir_\w+)`", page))
    assert len(OWN_TOPICS) == len(set(defaults)) + 1  # ledger.topic has no default


SAMPLE = (FOLDER / "weir.yaml").read_text("utf-8")
COMPLETE = re.sub(r"(?m)^#(?!#)", "", SAMPLE.partition("\n\n")[2])


def test_sample_switches_nothing_on() -> None:
    smallest = (FOLDER / "configuration.md").read_text("utf-8").partition("```yaml\n")[2].partition("```")[0]
    assert parse_config(SAMPLE, source="weir.yaml") == parse_config(smallest, source="configuration.md")


def test_sample_has_every_key() -> None:
    def paths(value: Any, path: str) -> set[str]:
        if isinstance(value, dict) and (not path or path in sections):
            return {
                inner
                for key, each in value.items()
                for inner in {f"{path}.{key}".lstrip("."), *paths(each, f"{path}.{key}".lstrip("."))}
            }
        return paths(value[0], path) if isinstance(value, list) and value else set()

    sections = {key.path.replace("[]", "") for key in KEYS if key.section is not None}
    found, wanted = paths(yaml.safe_load(COMPLETE), ""), {key.path.replace("[]", "") for key in KEYS}
    assert found == wanted, f"docs/reference/weir.yaml lacks or adds {found ^ wanted} — run `make reference`"


def test_sample_is_valid_with_its_examples() -> None:
    """Without those of two keys that exclude each other, and without a parent that is no group."""
    data = yaml.safe_load(COMPLETE)
    del data["upstream"]["sasl"]["token_file"], data["listeners"][0]["sni"]
    del data["quotas"]["groups"][0]["parent"]
    row = data["quotas"]["entities"][0]
    del row["ip"], row["connection_creation_rate"], row["max_connections"], row["shadow"]["connection_creation_rate"]
    (target,) = data["notify"]["targets"]
    del target["url_file"], target["entities"][0]["ip"], target["entities"][0]["group"]
    config = parse_config(yaml.safe_dump(data), source="weir.yaml")
    default = WeirConfig.model_fields["connections"].default
    assert config.connections.max_idle_ms == default.max_idle_ms
    assert config.sharing == SharingConfig()


def test_bounds_of_operators_are_those_of_the_code() -> None:
    rows = dict(line.split(" | ")[:2] for line in (ROOT / "docs/reference/bounds.md").read_text().splitlines() if " | " in line)
    assert rows["| viewers of the live page"] == str(MAX_VIEWERS)
    assert rows["| the body of `POST /api/quotas/forgive`"] == f"{MAX_BODY_BYTES // 1024} KiB"
    assert rows["| the config file"] == f"{MAX_CONFIG_BYTES >> 20} MiB"
    assert rows["| rows of `notify.targets`"] == str(MAX_TARGETS)
    assert rows["| the wait for `sharing.quotas_topic` before a gateway is ready"] == f"{PATIENCE_SECONDS:.0f} s"
