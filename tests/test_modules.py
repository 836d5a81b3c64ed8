"""The rules of CONTRIBUTING.md for modules: their size, and names that stand for one thing each."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for folder in ("gateway", "protocol") for path in (ROOT / folder).rglob("*.py"))
MAX_LINES = 400
# A file of this name plays the same role in each feature or package.
ROLES = {"__init__", "__main__", "config", "rules", "handlers", "feature", "metrics", "report"}
# These folders have one file for each API or connection, with its name: the codec, the handler, the quota kind.
BY_API = {"bodies", "handlers", "kinds"}


def test_no_module_has_more_than_400_lines() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in MODULES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_two_modules_have_one_name() -> None:
    names = Counter(path.stem for path in MODULES if path.stem not in ROLES and path.parent.name not in BY_API)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_have_one_name() -> None:
    trees = [ast.parse(path.read_bytes()) for path in MODULES]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, count in names.items() if count > 1] == []
