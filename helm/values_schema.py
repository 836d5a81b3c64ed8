"""Writes the chart's files that follow from Weir's config model.

- `weir/values.schema.json`: from `values.schema.yaml` (the chart's own values) and the model (`config`)
- `weir/files/restart-keys.yaml`: the keys that need a restart

python helm/values_schema.py            writes the files
python helm/values_schema.py --check    exits with 1 if one of them is out of date
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # imports this checkout's model, not an installed one

from gateway.config.foreign_names import folded  # noqa: E402
from gateway.config.keys import SECTIONS, changes_by, live_keys, restart_keys  # noqa: E402
from gateway.config.model import WeirConfig  # noqa: E402

WRITTEN = HERE / "weir" / "values.schema.json"
RESTART_KEYS = HERE / "weir" / "files" / "restart-keys.yaml"


class Untitled(GenerateJsonSchema):
    """Leaves out the title of each key, which only repeats the key."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False


def values_schema() -> dict[str, Any]:
    """The schema of all values in draft 7, which every Helm 3 supports."""
    chart = yaml.safe_load((HERE / "values.schema.yaml").read_text("utf-8"))
    config = WeirConfig.model_json_schema(mode="validation", schema_generator=Untitled)
    sections = config.pop("$defs")
    for section in sections.values():
        _add_aliases(section)
    if both := sections.keys() & chart["$defs"].keys():
        raise ValueError(f"values.schema.yaml and the config model both define {', '.join(sorted(both))}: rename it")
    definitions = {**chart.pop("$defs"), **sections, "WeirConfig": config}
    chart["properties"]["config"] = {"$ref": "#/$defs/WeirConfig"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **chart, "$defs": dict(sorted(definitions.items()))}


def _add_aliases(section: dict[str, Any]) -> None:
    """Allow the spelling in snake_case of Kafka's keys. Weir itself checks that a required key is there in one of them."""
    for key, schema in list(section.get("properties", {}).items()):
        if folded(key) != key:
            section["properties"][folded(key)] = schema
            section["required"] = [name for name in section.get("required", []) if name != key]


def restart_keys_text() -> str:
    """`live`: each section with keys that need a restart, and its other keys. Only the first level may have such keys."""
    live = {}
    for key in WeirConfig.model_fields:
        inside = {
            changes_by(path) for path, section in SECTIONS.items() if path[:1] == (key,) for path in _paths(path, section)
        }
        if "restart" in inside | {changes_by((key,))}:
            live[key] = live_keys(key) if (key,) in SECTIONS else []
    lines = "".join(f"  {section}: [{', '.join(keys)}]\n" for section, keys in live.items())
    return (
        "# Written by helm/values_schema.py from Weir's config model.\n"
        f"keys: {json.dumps(', '.join(restart_keys()))}\n"
        "# The sections of these keys, and those keys in them that a reload changes.\n"
        f"live:\n{lines}"
    )


def _paths(path: tuple[str, ...], section: type[BaseModel]) -> list[tuple[str, ...]]:
    return [(*path, field.alias or name) for name, field in section.model_fields.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = False
    for file, text in ((WRITTEN, json.dumps(values_schema(), indent=2) + "\n"), (RESTART_KEYS, restart_keys_text())):
        if not check:
            file.write_text(text, "utf-8")
        elif not file.exists() or file.read_text("utf-8") != text:
            sys.stderr.write(f"{file} does not match the config model; run: python helm/values_schema.py\n")
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
