"""Prometheus's conventions over all metrics: names, units and help texts."""

import re
import subprocess

import pytest

from gateway.admin.metrics.registry import METRICS, exposition
from gateway.admin.metrics.row import Distribution, Row, Value
from gateway.admin.view import AdminView
from gateway.quotas.kinds import UNITS
from gateway.steps import at_once
from gateway.workers.families import WORKER_METRICS
from tests.gateway.conftest import scraped
from tests.helm.prometheus_process import program

ALL = [*METRICS, *WORKER_METRICS]
DEPRECATED = [row for row in METRICS if row.help.startswith("Deprecated since ")]
CURRENT = [row for row in ALL if row not in DEPRECATED]

UNIT_WORDS = {
    "bytes per second": "_bytes_per_second",
    "milliseconds": None,
    "KiB": None,
    "MiB": None,
    "percent": None,
}
"""Units in help texts, and the end of the metric's name; None: no base unit."""

NOT_BY_ITSELF = re.compile(r"\b(these|those|such|the same|that topic)\b|^How many", re.IGNORECASE)
"""Words that need the help text of another metric."""

each_metric = pytest.mark.parametrize("row", CURRENT, ids=lambda row: row.name)


@each_metric
def test_name_has_the_ending_of_its_type(row: Row) -> None:
    assert re.fullmatch(r"weir(_[a-z]+)+", row.name)
    if isinstance(row, Distribution):
        assert row.name.endswith("_seconds")
    else:
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert not row.name.endswith(("_count", "_sum", "_bucket"))


@each_metric
def test_help_is_one_or_more_whole_sentences(row: Row) -> None:
    assert re.fullmatch(r"[A-Z0-9].*\.", row.help)


@each_metric
def test_help_needs_no_other_metric(row: Row) -> None:
    assert NOT_BY_ITSELF.search(row.help) is None


@each_metric
def test_name_ends_with_its_base_unit(row: Row) -> None:
    for words, ending in UNIT_WORDS.items():
        if words in row.help:
            assert ending is not None, f"{row.name} is in {words}"
            assert row.name.endswith(ending)
    if re.match(r"(Time|Sum of .* time|Throttle times|CPU time)\b", row.help) and "timestamp" not in row.name:
        assert "_seconds" in row.name
    if re.match(r"(Fraction|Share)\b", row.help):
        assert row.name.endswith("_ratio")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_unit_has_names_of_its_own(unit: object, view: AdminView) -> None:
    """A sum over one name never adds bytes to requests."""
    name = getattr(unit, "name")  # noqa: B009 -- the parameter's ids need the object
    others = {each.name for each in UNITS} - {name}
    names = {row.name for row in CURRENT if f"_{name}" in row.name and row.name.startswith("weir_quota_")}
    assert names == {
        f"weir_quota_{name}_total",
        f"weir_quota_usage_{name}_per_second",
        f"weir_quota_limit_{name}_per_second",
        f"weir_quota_tokens_{name}",
    }
    assert not any(other in each for other in others for each in names)


def test_deprecated_metrics_name_an_existing_successor() -> None:
    names = {row.name for row in CURRENT} | {"weir_quota_usage_UNIT_per_second", "weir_quota_limit_UNIT_per_second"}
    names |= {"weir_quota_tokens_UNIT"}
    assert {row.name for row in DEPRECATED} == {
        "weir_quota_usage",
        "weir_quota_limit",
        "weir_quota_tokens",
        "weir_topic_rate",
        "weir_topic_threshold",
        "weir_topics_rate",
        "weir_topics_threshold",
        "weir_topics_default_threshold",
        "weir_volume_factor",
    }
    for row in DEPRECATED:
        found = re.match(r"Deprecated since [\d.]+: use (\w+)\. ", row.help)
        assert found is not None
        assert found[1] in names


def test_deprecated_metric_has_the_values_of_its_successor(view: AdminView) -> None:
    text = b"".join(at_once(exposition(scraped(view), ""))[0]).decode()
    labels = '{client_id="etl",kind="produce",user="alice"}'
    (old,) = re.findall(rf"^weir_quota_limit{re.escape(labels)} (\S+)$", text, re.MULTILINE)
    (new,) = re.findall(rf"^weir_quota_limit_bytes_per_second{re.escape(labels)} (\S+)$", text, re.MULTILINE)
    assert old == new == "100000.0"


@pytest.mark.process
def test_promtool_accepts_the_page(view: AdminView) -> None:
    body = b"".join(at_once(exposition(scraped(view), ""))[0])
    found = subprocess.run([program("promtool"), "check", "metrics"], input=body, capture_output=True, timeout=60)
    lines = [line for line in (found.stdout + found.stderr).decode().splitlines() if "weir_" in line]
    assert lines == []


def test_every_value_is_checked() -> None:
    assert {type(row) for row in METRICS} == {Value, Distribution}
    assert len(CURRENT) > len(DEPRECATED)
