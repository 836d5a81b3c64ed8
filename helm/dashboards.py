"""Adds the registry's quota kinds to `weir/files/dashboards/entity.json`: each selector names all kinds of its unit, and each
unit has a panel. Makes `groups.json`, with four panels for each kind.

python helm/dashboards.py            writes the files
python helm/dashboards.py --check    exits with 1 if a file lacks a kind or a unit
"""

import argparse
import json
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it is this checkout's registry

from gateway.quotas.kinds import KINDS, ROW_KINDS, UNITS, QuotaKind  # noqa: E402
from helm.group_dashboard import group_dashboard  # noqa: E402

ENTITY = HERE / "weir" / "files" / "dashboards" / "entity.json"
GROUPS = ENTITY.with_name("groups.json")
_SELECTOR = re.compile(r'\bkind=~?"([a-z_|]+)(?:\[\.\]\.\*)?"')
_OF_UNIT = re.compile(r"\bweir_quota_(usage|limit)_[a-z]+_per_second\b")
_TEMPLATES = {False: "Partitions per second", True: "Connections per second"}
"""The panel that a new unit's panel is copied from: of a unit of clients, of a unit of addresses."""


def entity_dashboard() -> dict[str, Any]:
    """The dashboard with all kinds. Raises KeyError if the file names a kind that is not in the registry."""
    dashboard: dict[str, Any] = _with_all_kinds(json.loads(ENTITY.read_text("utf-8")))
    panels = dashboard["panels"]
    titles = {panel["title"] for panel in panels}
    for unit, kinds in UNITS.items():
        title = f"{unit.name.capitalize()} per second"
        if title not in titles:
            _add_panel(panels, title, kinds[0])
    return dashboard


def _with_all_kinds(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    if isinstance(value, str):
        return _SELECTOR.sub(lambda match: _selector(KINDS[match[1].split("|")[0]]), value)
    if isinstance(value, dict):
        return {name: _with_all_kinds(each) for name, each in value.items()}
    return [_with_all_kinds(each) for each in value] if isinstance(value, list) else value


def _selector(kind: QuotaKind) -> str:
    names = [each.name for each in ROW_KINDS if each.unit == kind.unit]
    of_apis = {each.name.partition(".")[0] for each in UNITS[kind.unit] if each.api is not None}
    names += [f"{name}[.].*" for name in sorted(of_apis)]  # kinds of single APIs, such as request_rate.Metadata
    return f'kind="{names[0]}"' if len(names) == 1 else f'kind=~"{"|".join(names)}"'


def _add_panel(panels: list[dict[str, Any]], title: str, kind: QuotaKind) -> None:
    """Add a line with the unit's panel to the end of the template's row."""
    template = next(panel for panel in panels if panel["title"] == _TEMPLATES["ip" in kind.entity_types])
    after = panels.index(template) + 1
    while after < len(panels) and panels[after]["type"] != "row":
        after += 1
    panel = deepcopy(template)
    y = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels[:after])
    panel |= {
        "id": max(each["id"] for each in panels) + 1,
        "title": title,
        "description": f"Use and limit of {kind.config_key}: {kind.description}.",
        "gridPos": template["gridPos"] | {"x": 0, "y": y},
    }
    panel["fieldConfig"]["defaults"]["unit"] = kind.unit.grafana
    for target in panel["targets"]:
        expression = _SELECTOR.sub(_selector(kind), target["expr"])
        target["expr"] = _OF_UNIT.sub(rf"weir_quota_\1_{kind.unit.name}_per_second", expression)
    for later in panels[after:]:
        later["gridPos"]["y"] += panel["gridPos"]["h"]
    panels.insert(after, panel)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    for file, dashboard in ((ENTITY, entity_dashboard()), (GROUPS, group_dashboard())):
        text = json.dumps(dashboard, indent=2) + "\n"
        if not check:
            file.write_text(text, "utf-8")
        elif not file.exists() or file.read_text("utf-8") != text:
            sys.stderr.write(f"{file} lacks a quota kind or unit — run: python helm/dashboards.py\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
