"""README.md and the alerts link to pages that exist, and the pages' examples are valid."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.metrics.registry import METRICS
from gateway.config.load import parse_config
from gateway.config.unreached_rows import unreached_warnings
from gateway.proxy.states import REQUEST_TRANSITIONS, RequestEvent, RequestState
from gateway.workers.families import WORKER_METRICS
from tests.helm.queries import rules

CHECKOUT = Path(__file__).parents[1]
DOCS = CHECKOUT / "docs"
README = CHECKOUT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
SITE = PROJECT["urls"]["Documentation"]
DESIGN = (CHECKOUT / "gateway" / "DESIGN.md").read_text()
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
METRIC_NAMES = {metric.name for metric in (*METRICS, *WORKER_METRICS)}
MOST_LINES = 150
"""The most lines of README.md, so that a newcomer reads it to its end."""


def source(address: str) -> Path:
    """The file behind an address of the site."""
    path = DOCS / address.removeprefix(SITE).partition("#")[0]
    return path.with_suffix(".md") if path.suffix == ".html" else path


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def examples() -> list[Any]:
    found = []
    for page in [README, *PAGES]:
        for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE), 1):
            content = yaml.safe_load(text)
            if isinstance(content, dict) and {"upstream", "listeners", "quotas"} & content.keys():
                found.append(pytest.param(content, id=f"{page.relative_to(CHECKOUT)}-{number}"))
    return found


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_unreleased_changes_have_a_version_of_their_own() -> None:
    unreleased, *released = re.split(r"(?m)^## ", (CHECKOUT / "CHANGELOG.md").read_text())[1:]
    versions = re.findall(r"(?m)^\[(\d+\.\d+\.\d+)\]", "\n".join(released))
    assert len(versions) >= 2
    assert (PROJECT["version"] in versions) == ("\n- " not in unreleased)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_wheel_is_installed_from_the_folder_that_has_it(page: Path) -> None:
    """`make dist` writes wheels into `dist`. No package index has Weir."""
    named = re.findall(r"pip install [^`\n]*?(\S*weir[_-]gateway\S*)", page.read_text())
    assert [each for each in named if "dist/weir_gateway-*.whl" not in each] == []


def test_file_map_names_each_part_of_the_gateway() -> None:
    parts = {
        path.name if path.suffix else f"{path.name}/"
        for path in (CHECKOUT / "gateway").iterdir()
        if path.name != "__init__.py" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    text = DESIGN.partition("\n## File map\n")[2].partition("\n## ")[0]
    file_map = text.partition("\ngateway/\n")[2].partition("\nhelm/\n")[0]
    assert parts - set(re.findall(r"[\w/]+\.py|\w+/", file_map)) == set()


def test_design_draws_the_legal_transitions_of_requests() -> None:
    """Every change of the state is drawn, but for the closes: one stands for all."""
    drawn = {
        (RequestState[before], RequestEvent[event.replace("-", "_").upper()]): RequestState[after]
        for before, after, events in re.findall(r"(?m)^    ([A-Z_]+) --> ([A-Z_]+): ([a-z -]+)$", DESIGN)
        for event in events.split(" or ")
    }
    assert drawn.items() <= REQUEST_TRANSITIONS.items()
    changes = {step: after for step, after in REQUEST_TRANSITIONS.items() if step[0] is not after}
    assert {step for step in changes.keys() - drawn.keys() if step[1] is not RequestEvent.CLOSE} == set()


def test_readme_links_to_existing_pages_of_the_site() -> None:
    found = links(README)
    assert len(found) > 20
    assert [link for link in found if not (link.startswith(SITE) and source(link).is_file())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page_links_to_existing_files(page: Path) -> None:
    relative = [link.partition("#")[0] for link in links(page) if "://" not in link]
    assert [link for link in relative if link and not (page.parent / link).is_file()] == []


@pytest.mark.parametrize("content", examples())
def test_example_is_a_valid_config_whose_limits_apply(content: dict[str, Any]) -> None:
    content = {"listeners": [{"name": "clients", "bootstrap_port": 29092}], **content}
    content["upstream"] = {"bootstrap_servers": ["127.0.0.1:9092"], **content.get("upstream", {})}
    config = parse_config(yaml.safe_dump(content), source="an example")
    assert list(unreached_warnings(config.quotas.entities)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page_names_existing_metrics(page: Path) -> None:
    series = {name + suffix for name in METRIC_NAMES for suffix in ("", "_bucket", "_sum", "_count")}
    assert set(re.findall(r"`(weir_[a-z0-9_]+)[`{ ]", page.read_text())) <= series


@pytest.mark.parametrize("name", ALERTS)
def test_alert_links_to_its_runbook(name: str) -> None:
    address = ALERTS[name]["annotations"]["runbook_url"]
    assert address == f"{SITE}how-to/runbooks/{name}.html"
    assert source(address).read_text().startswith(f"# {name}\n")


def test_chart_links_alerts_to_the_same_pages() -> None:
    values = yaml.safe_load((CHECKOUT / "helm" / "weir" / "values.yaml").read_text())
    assert values["prometheusRule"]["runbookBaseUrl"] == f"{SITE}how-to/runbooks"


def test_each_runbook_belongs_to_an_alert() -> None:
    pages = {page.stem for page in (DOCS / "how-to" / "runbooks").glob("*.md")} - {"index"}
    assert pages == ALERTS.keys()
