"""No two public classes of the gateway share a name."""

import ast
from collections import Counter
from pathlib import Path


def test_no_class_name_is_shared():
    names: Counter[str] = Counter()
    for path in (Path(__file__).parents[2] / "gateway").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert {name for name, count in names.items() if count > 1} == set()
