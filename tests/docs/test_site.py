"""The documentation site builds without a warning: no broken link, anchor or snippet."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, without the scripts that `make docs` fetches."""
    folder = tmp_path_factory.mktemp("site")
    config = folder / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/.ci/mkdocs.yml\ndocs_dir: {ROOT}/docs\nsite_dir: {folder}/site\nhooks: []\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder / "site"


def test_each_page_is_built(site: Path) -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if not path.name.startswith(".")]
    assert len(pages) > 30
    assert [page for page in pages if not (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()] == []


def test_no_page_loads_from_another_host(site: Path) -> None:
    loads = ('src="http', 'href="http')
    for page in site.rglob("*.html"):
        head, _, _ = page.read_text("utf-8").partition("</head>")
        assert [load for load in loads if load in head.replace('<link rel="canonical"', "")] == [], page


def test_search_finds_a_config_key(site: Path) -> None:
    assert "max_per_ip_overrides" in (site / "search" / "search_index.js").read_text("utf-8")
