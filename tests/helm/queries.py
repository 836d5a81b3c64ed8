"""The PromQL in the chart's files, as Prometheus and Grafana read it."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).parents[2] / "helm" / "weir" / "files"
ALERTS = FILES / "alerts.yaml"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))

_METRIC = re.compile(r"(?<![\w:])((?:weir|process)_\w+)(?![\w:(])(?:\{([^}]*)\})?")
_RECORDED = re.compile(r"\w+:\w+:\w+")
_LABEL = re.compile(r"(\w+)\s*[=!][=~]?")
_VARIABLE = re.compile(r"\$(\w+)")
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and its place in the files."""

    where: str
    expression: str

    def metrics(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Return the metrics that the expression reads, each with the labels it selects by."""
        for name, selector in _METRIC.findall(self.expression):
            yield name, frozenset(_LABEL.findall(re.sub(r'"[^"]*"', "", selector)))

    def recorded(self) -> set[str]:
        """Return the recorded metrics that the expression reads."""
        return set(_RECORDED.findall(self.expression))

    def variables(self) -> set[str]:
        """Return Grafana's variables in the expression."""
        return set(_VARIABLE.findall(self.expression))

    def filled_in(self, values: Mapping[str, str]) -> str:
        """Return the expression with Grafana's variables replaced. Raises KeyError for a variable without a value."""
        return _VARIABLE.sub(lambda match: values[match[1]], self.expression)


def rules() -> list[dict[str, Any]]:
    """The recording rules and the alerts, in the order of the file."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def rule_queries() -> list[Query]:
    """The expressions of all rules."""
    return [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def dashboard(file: Path) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def panels(file: Path) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without its rows."""
    return [panel for panel in dashboard(file)["panels"] if panel["type"] != "row"]


def panel_queries(file: Path) -> list[Query]:
    """Return the expressions of a dashboard's panels and annotations."""
    shown = [
        Query(f"{file.stem}: {panel['title']} ({target['refId']})", target["expr"])
        for panel in panels(file)
        for target in panel["targets"]
    ]
    noted = [Query(f"{file.stem}: {note['name']}", note["expr"]) for note in dashboard(file)["annotations"]["list"]]
    return shown + noted


def variable_queries(file: Path) -> dict[str, tuple[Query, str]]:
    """Return a dashboard's Prometheus variables by name: the series, and the label with the values."""
    found = {}
    for variable in dashboard(file)["templating"]["list"]:
        if variable["type"] == "query":
            match = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert match is not None, variable["query"]
            found[variable["name"]] = Query(f"{file.stem}: ${variable['name']}", match[1]), match[2]
    return found
