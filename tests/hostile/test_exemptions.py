"""An exemption by client-id lets any user evade user quotas. The docs show none, and `weir check` warns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.process
CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def check(config_file: Path, entities: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    listener = {"name": "clients", "bootstrap_port": 29092, "broker_ports": "29093-29099"}
    upstream = {"bootstrap_servers": ["127.0.0.1:9092"]}
    config_file.write_text(yaml.safe_dump({"upstream": upstream, "listeners": [listener], "quotas": {"entities": entities}}))
    command = [sys.executable, "-m", "gateway", "check", "--config", str(config_file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_docs_exempt_nobody_by_client_id(tmp_path):
    texts = [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    blocks = [block for text in texts if isinstance(block := yaml.safe_load(text), dict)]
    examples = [block["quotas"]["entities"] for block in blocks if "entities" in (block.get("quotas") or {})]
    assert any(row.get("exempt") for entities in examples for row in entities)
    for entities in examples:
        checked = check(tmp_path / "weir.yaml", entities)
        assert checked.returncode == 0
        assert "is exempt" not in checked.stdout


WARNINGS = [
    (
        {"client-id": "mirror-maker", "exempt": True},
        ["warning: quotas.entities[1].client-id: mirror-maker is exempt"],
    ),
    (
        {"client-id": "mirror", "exempt": ["topics", "volumes"]},
        ["any user can leave quotas.topics and quotas.volumes with it", "{user: NAME, exempt: [topics, volumes]}"],
    ),
]


@pytest.mark.parametrize(("exemption", "words"), WARNINGS, ids=["rates", "guards"])
def test_check_warns_of_exempt_client_id(exemption, words, tmp_path):
    checked = check(tmp_path / "weir.yaml", [{"user": "<default>", "producer_byte_rate": 1048576}, exemption])
    assert checked.returncode == 0
    assert [each for each in words if each not in checked.stdout] == []
