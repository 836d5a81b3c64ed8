"""The Grafana dashboard of groups that share a capacity: the same four panels for each quota kind of the registry."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from gateway.quotas.kinds import CLIENT_KINDS, KINDS, QuotaKind

OVERVIEW: Final = Path(__file__).resolve().parent / "weir" / "files" / "dashboards" / "overview.json"

_MOST: Final = 25
"""The groups that a panel shows at most: a tree may have a thousand."""

_HERE: Final = 'instance=~"$instance"'
_ALL: Final = 'group!=""'
_MISSED: Final = (
    f"max by (group, kind) (weir_group_cluster_usage{{{_HERE}}} / weir_group_guarantee{{{_HERE}}}) < 0.95"
    f" and on (group, kind) max by (group, kind) (weir_group_wants_more{{{_HERE}}} == 1)"
)
_FULL: Final = f"max by (group, kind) (weir_group_cluster_usage{{{_HERE}}} / weir_group_ceiling{{{_HERE}}}) > 0.95"
_STATS: Final = (
    ("Groups that wait", "Groups and kinds with clients that wait for their group's share.",
     f"sum(max by (group, kind) (weir_group_wants_more{{{_HERE}}}))"),
    ("Guarantees that are not met", "Groups and kinds that wait with less than 95 % of their guarantee. None is right.",
     f"count({_MISSED}) or vector(0)"),
    ("Groups at their ceiling", "Groups and kinds that use more than 95 % of their own ceiling now.",
     f"count({_FULL}) or vector(0)"),
)  # fmt: skip


def group_dashboard() -> dict[str, Any]:
    """The dashboard, with the source, the gateways and the style of the overview."""
    overview = json.loads(OVERVIEW.read_text("utf-8"))
    templates = {panel["title"]: panel for panel in overview["panels"]}
    variables = {each["name"]: each for each in overview["templating"]["list"]}
    panels: list[dict[str, Any]] = [_row("Now", 0)]
    for place, (title, description, expression) in enumerate(_STATS):
        panels.append(_like(templates["Muted"], title, description, "short", (expression, "")))
        panels[-1]["gridPos"] = {"h": 4, "w": 8, "x": place * 8, "y": 1}
    y = 5
    for kind in (KINDS[name] for name in CLIENT_KINDS):
        panels += _of_kind(kind, templates, y)
        y = panels[-1]["gridPos"]["y"] + panels[-1]["gridPos"]["h"]
    return overview | {
        "uid": "weir-groups",
        "title": "Weir: groups",
        "description": "Groups that share a capacity: use, share, guarantee, and lending, for each kind of quota.",
        "templating": {"list": [variables["datasource"], variables["instance"], _variable(variables["instance"])]},
        "links": [overview["links"][0] | {"title": "Overview", "url": "/d/weir-overview"}],
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, 1)],
    }


def _of_kind(kind: QuotaKind, templates: dict[str, Any], y: int) -> list[dict[str, Any]]:
    def series(name: str, labels: str = 'group=~"$group"') -> str:
        return f'max by (group) (weir_group_{name}{{{_HERE}, kind="{kind.name}", {labels}}})'

    above = f'max by (parent) (weir_group_level{{{_HERE}, kind="{kind.name}", parent!=""}})'
    leaves = f'{series("cluster_usage")} unless on (group) label_replace({above}, "group", "${{1}}", "parent", "(.+)")'
    root = series("level", 'parent=""')
    lending = f"{series('allocation')} - {series('entitlement')}"
    below = f"unless on (group) {root}"
    style, unit = templates["Bytes of groups"], kind.unit.grafana
    waits = f'avg_over_time(weir_group_wants_more{{{_HERE}, kind="{kind.name}", group=~"$group"}}[$__rate_interval])'
    panels = [
        _like(style, "Use of the capacity", f"Use by the {_MOST} busiest groups with clients, below the"
              " ceiling of the whole.", unit,
              (f"topk({_MOST}, {leaves})", "{{group}}"),
              (f"{series('ceiling', _ALL)} and on (group) {root}", "ceiling of {{group}}")),
        _like(style, "Share and guarantee", f"Present shares of the {_MOST} largest groups, and the guarantees.",
              unit,
              (f"topk({_MOST}, {series('allocation')})", "{{group}}"),
              (f"topk({_MOST}, {series('guarantee')})", "guarantee of {{group}}")),
        _like(style, "Borrowed and lent", "Share beyond the part that the group has at any time. Below 0, others"
              " may use it.", unit,
              (f"topk({_MOST}, {lending} > 0)\nor bottomk({_MOST}, {lending} <= 0 {below})", "{{group}}")),
        _like(style, "Waiting time", "Part of the time in which clients waited for their group's share.",
              "percentunit", (f"topk({_MOST}, max by (group) ({waits}))", "{{group}}")),
    ]  # fmt: skip
    _stack(panels[0])
    for panel in panels[:2]:
        _mark_limits(panel)
    del panels[2]["fieldConfig"]["defaults"]["min"]
    for place, panel in enumerate(panels):
        panel["gridPos"] = {"h": 8, "w": 12, "x": place % 2 * 12, "y": y + 1 + place // 2 * 8}
    return [_row(kind.title, y), *panels]


def _row(title: str, y: int) -> dict[str, Any]:
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []}


def _like(template: dict[str, Any], title: str, description: str, unit: str, *queries: tuple[str, str]) -> dict[str, Any]:
    """A panel with a template's style. `queries` are expressions with the names of their lines."""
    panel = deepcopy(template)
    target = panel["targets"][0]
    panel |= {"title": title, "description": description}
    panel["fieldConfig"]["defaults"]["unit"] = unit
    panel["targets"] = [
        target | {"refId": "AB"[place], "expr": expression, "legendFormat": legend}
        for place, (expression, legend) in enumerate(queries)
    ]
    return panel


def _stack(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["custom"] |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}


def _mark_limits(panel: dict[str, Any]) -> None:
    """Draw ceilings and guarantees as dashed lines without a stack."""
    properties: dict[str, Any] = {
        "custom.stacking": {"mode": "none", "group": "A"},
        "custom.fillOpacity": 0,
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
    }
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byFrameRefID", "options": "B"},
            "properties": [{"id": name, "value": value} for name, value in properties.items()],
        }
    ]


def _variable(template: dict[str, Any]) -> dict[str, Any]:
    query = f"label_values(weir_group_level{{{_HERE}}}, group)"
    return template | {
        "name": "group",
        "label": "Group",
        "definition": query,
        "query": {"query": query, "refId": "variable-group"},
    }
