"""Writes `weir/values.schema.json` from `values.schema.yaml` (the chart's own values) and Weir's config model (`config`).

python helm/values_schema.py            writes the file
python helm/values_schema.py --check    exits with 1 if the file is out of date
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # imports this checkout's model, not an installed one

from gateway.config.model import WeirConfig  # noqa: E402

WRITTEN = HERE / "weir" / "values.schema.json"


class Untitled(GenerateJsonSchema):
    """Leaves out the title of each key, which only repeats the key."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False


def values_schema() -> dict[str, Any]:
    """The schema of all values in draft 7, which every Helm 3 supports."""
    chart = yaml.safe_load((HERE / "values.schema.yaml").read_text("utf-8"))
    config = WeirConfig.model_json_schema(mode="validation", schema_generator=Untitled)
    sections = config.pop("$defs")
    if both := sections.keys() & chart["$defs"].keys():
        raise ValueError(f"values.schema.yaml and the config model both define {', '.join(sorted(both))}: rename it")
    definitions = {**chart.pop("$defs"), **sections, "WeirConfig": config}
    chart["properties"]["config"] = {"$ref": "#/$defs/WeirConfig"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **chart, "$defs": dict(sorted(definitions.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = json.dumps(values_schema(), indent=2) + "\n"
    if check:
        if WRITTEN.exists() and WRITTEN.read_text("utf-8") == text:
            return 0
        sys.stderr.write(f"{WRITTEN} does not match the config model; run: python helm/values_schema.py\n")
        return 1
    WRITTEN.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
