"""The page of the Helm chart's values: defaults and comments of values.yaml, types of values.schema.yaml."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from markdown import below_title, code, table

HELM = Path(__file__).resolve().parents[2] / "helm"
VALUES = HELM / "weir" / "values.yaml"

HEAD = ("value", "type", "default", "meaning")
_KINDS = {bool: "boolean", int: "integer", str: "string", list: "array"}

INTRO = """\
# Chart values

The chart is in `helm/weir`. Helm checks values with `values.schema.json`. `config` is the whole file of the
[configuration](configuration.md): the chart makes a ConfigMap of it.
"""


def page() -> str:
    text = VALUES.read_text("utf-8")
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    schema = yaml.safe_load((HELM / "values.schema.yaml").read_text("utf-8"))
    parts = [INTRO]
    lines = text.splitlines()
    rest: list[tuple[str, ...]] = []
    for key, value in root.value:
        name, of = key.value, _resolved(schema["properties"].get(key.value, {}), schema)
        comment = _comment_above(lines, key.start_mark.line)
        if name == "config":
            shown = re.sub(r"(\n#.*|\n)*\Z", "", "\n".join(lines[key.start_mark.line : value.end_mark.line]))
            parts.append(f"## `config`\n\n{comment}\n\nThe default:\n\n```yaml\n{shown}\n```\n")
        elif "```" in comment:
            parts.append(f"## `{name}`\n\n{comment}")
        elif isinstance(value, yaml.MappingNode) and value.value:
            trailing = "" if value.flow_style is False else _trailing(lines, key.start_mark.line)
            rows = list(_rows("", value, of, schema, lines))
            about = comment or trailing or of.get("description", "")
            parts.append(f"## `{name}`\n\n{about}\n\n{table(HEAD, rows)}")
        else:
            rest.append(_row(name, key, value, of, lines, comment))
    parts.append(f"## Other values\n\n{table(HEAD, rest)}")
    return below_title(re.sub(r"\n{3,}", "\n\n", "\n".join(parts)))


def _rows(
    prefix: str, node: yaml.MappingNode, of: Mapping[str, Any], root: Mapping[str, Any], lines: list[str]
) -> Iterator[tuple[str, ...]]:
    for key, value in node.value:
        inner = _resolved(of.get("properties", {}).get(key.value, {}), root)
        if isinstance(value, yaml.MappingNode) and value.value and "properties" in inner:
            yield from _rows(f"{prefix}{key.value}.", value, inner, root, lines)
        else:
            alone = node.flow_style is False
            yield _row(
                prefix + key.value,
                key,
                value,
                inner,
                lines if alone else [],
                _comment_above(lines, key.start_mark.line) if alone else "",
            )


def _row(name: str, key: yaml.Node, value: yaml.Node, of: Mapping[str, Any], lines: list[str], comment: str) -> tuple[str, ...]:
    default = yaml.safe_load(yaml.serialize(value))
    words = " ".join(filter(None, (comment.replace("\n", " "), _trailing(lines, key.start_mark.line) if lines else "")))
    return code(name), _kind(of, default), code(json.dumps(default)), words or of.get("description", "")


def _kind(of: Mapping[str, Any], default: object) -> str:
    if "enum" in of:
        return ", ".join(code(str(choice)) for choice in of["enum"])
    kind = of.get("type", _KINDS.get(type(default), "object"))
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _resolved(of: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    return root["$defs"][of["$ref"].rpartition("/")[2]] | of if "$ref" in of else of


def _comment_above(lines: list[str], line: int) -> str:
    """The block of comments directly above a line, as Markdown: an indented line is an example."""
    block: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].lstrip()[1:].removeprefix(" "))
    return re.sub(r"(?m)((?:^  .*\n?)+)", lambda match: f"```text\n{match[1].rstrip()}\n```\n", "\n".join(block))


def _trailing(lines: list[str], line: int) -> str:
    match = re.search(r"\s# (.*)", lines[line]) if lines and line < len(lines) else None
    if match is None:
        return ""
    words = match[1].rstrip(".")
    return f"`{words}`" if "/" in words and " " not in words else f"{words[:1].upper()}{words[1:]}."
