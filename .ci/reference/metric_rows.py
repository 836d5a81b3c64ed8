"""The page of metrics: every metric with its type, labels, help, and the alerts and dashboards that use it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import reason_values
import yaml
from markdown import below_title, code, table

from gateway.admin.metrics.clients import METRICS as CLIENTS
from gateway.admin.metrics.quotas import METRICS as QUOTAS
from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Distribution, Row
from gateway.features.catalogue import FEATURES
from gateway.features.volume_quotas.metrics import PUBLISHER_METRICS
from gateway.quotas.kinds import UNITS
from gateway.workers.families import WORKER_METRICS, WorkerValue

FILES = Path(__file__).resolve().parents[2] / "helm" / "weir" / "files"
_NAME = re.compile(r"\bweir_[a-z0-9_]+\b")

OWN_QUERIES = {
    "weir_proxy_headers_total": "once `none` stays constant, every client uses a balancer, and `mode: required` refuses none",
    "weir_topic_throttled_requests_total": "requests that met the threshold of a topic, by topic",
    "weir_volume_open_ratio": "strength of the disks' effect on producers",
    "weir_volume_publication_age_seconds": "an age above quotas.volumes.freshness_seconds: gateways count the usage as unknown",
    "weir_broker_connections_reused_total": "clients of a storm of short connections that cost their broker no new one",
    "weir_member_mutes_total": "if it grows, a rate of requests is too small for the number of its group members",
    "weir_shadow_limit": "the shadow limit beside its use",
    "weir_shadow_used_ratio": "shadow limits that would throttle: above 1.0",
    "weir_shadow_throttled_requests_total": "requests that a shadow limit would have throttled",
    "weir_user_connections": "users near weir_user_max_connections",
    "weir_user_max_connections": "the maximum beside weir_user_connections",
    **{
        f"weir_quota_{unit.name}_total": f"{unit.name} charged to a client: the base of a price"
        for unit in UNITS
        if unit.name != "bytes"
    },
    **{
        f"weir_quota_tokens_{unit.name}": f"{unit.name} that a client may still use at once"
        for unit in UNITS
        if unit.name != "bytes"
    },
}
"""The use of metrics that are in no alert and on no dashboard."""

INTRO = """\
# Metrics

`/metrics` of the admin port has these metrics in Prometheus's text format, or as OpenMetrics for scrapers that accept it. The
usual `process_*` metrics come with them. Amounts are in the unit of the label `kind`: {units}.
A kind such as `request_rate.Metadata` counts the requests of one API, for which `request_rates` has a limit.

The column `use` names the alerts in `helm/weir/files/alerts.yaml` and the panels of the Grafana dashboards.

With several `workers`, values of all workers are summed, or the extreme is taken, so that one page describes the whole gateway.
Each process has its own limit of open files, so `process_open_fds` is the highest count and `process_max_fds` the lowest limit.

With `quotas.enforce: false`, the metrics of throttles count decisions that delay no client. `weir_quota_enforced` tells them
apart: add `and on (job, instance) weir_quota_enforced == 1` to a query, as the alerts do.
"""


def page() -> str:
    from gateway.quotas.kinds import ROW_KINDS

    units = ", ".join(f"{code(kind.name)} {kind.unit.name}" for kind in ROW_KINDS)
    uses = used()
    of_features = [(feature.__name__, feature.metrics) for feature in FEATURES if feature.metrics]
    known = {row.name for row in (*QUOTAS, *CLIENTS, *(row for _, rows in of_features for row in rows))}
    sections: list[tuple[str, Iterable[Row | WorkerValue]]] = [
        ("Quotas and throttles", QUOTAS),
        ("Connections and requests", CLIENTS),
    ]
    sections += [(_title(name), rows) for name, rows in of_features]
    sections += [("The gateway itself", [row for row in METRICS if row.name not in known]), ("Workers", WORKER_METRICS)]
    parts = [INTRO.format(units=units)]
    for title, rows in sections:
        parts.append(
            f"## {title}\n\n{table(('metric', 'type', 'labels', 'meaning', 'use'), (_row(row, uses) for row in rows))}"
        )
    agent = ", ".join(code(row.name) for row in PUBLISHER_METRICS)
    parts.append(f"## The agent\n\n`weir volumes publish` has these of the metrics above on its own admin port: {agent}.\n")
    parts.append(reason_values.section())
    return below_title("\n".join(parts))


def _row(row: Row | WorkerValue, uses: Mapping[str, list[str]]) -> tuple[str, ...]:
    kind = "histogram" if isinstance(row, Distribution) else row.kind
    labels = ("worker",) if isinstance(row, WorkerValue) else row.labels
    return (
        code(row.name),
        kind,
        ", ".join(map(code, labels)),
        row.help,
        "; ".join(uses.get(row.name) or [_own_query(row)]),
    )


def _own_query(row: Row | WorkerValue) -> str:
    old = "queries that were written for version 0.1" if row.help.startswith("Deprecated since ") else ""
    return OWN_QUERIES.get(row.name, old)


def _title(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Feature")).lower().replace(" api", " API")
    return words[:1].upper() + words[1:]


def used() -> dict[str, list[str]]:
    """The uses of each metric: `alerts: A, B`, and the panels of each dashboard. A histogram counts with its series."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for place, use, text in (*_rules(), *_panels()):
        for name in _NAME.findall(text):
            for each in {name, re.sub(r"_(bucket|sum|count)$", "", name)}:
                found.setdefault(each, {}).setdefault(place, {})[use] = None
    return {name: [f"{place}: {', '.join(uses)}" for place, uses in places.items()] for name, places in found.items()}


@cache
def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((FILES / "alerts.yaml").read_text("utf-8"))["groups"]
    return groups


def _recorded() -> dict[str, str]:
    return {rule["record"]: rule["expr"] for group in _groups() for rule in group["rules"] if "record" in rule}


def _with_recorded(expression: str) -> str:
    """The expression, with the expressions of its recorded series behind it."""
    return " ".join([expression, *(text for name, text in _recorded().items() if name in expression)])


def _rules() -> Iterator[tuple[str, str, str]]:
    for group in _groups():
        alerts = (rule for rule in group["rules"] if "alert" in rule)
        yield from (("alerts", rule["alert"], _with_recorded(str(rule["expr"]))) for rule in alerts)


def _panels() -> Iterator[tuple[str, str, str]]:
    for file in sorted((FILES / "dashboards").glob("*.json")):
        dashboard = json.loads(file.read_text("utf-8"))
        for title, text in _expressions(dashboard["panels"]):
            yield f"dashboard {file.stem}", title, _with_recorded(text)


def _expressions(panels: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for panel in panels:
        for target in panel.get("targets", ()):
            yield panel["title"], target.get("expr", "")
        yield from _expressions(panel.get("panels", ()))
