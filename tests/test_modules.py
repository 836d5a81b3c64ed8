"""The rules of CONTRIBUTING.md for modules: their size, and names that stand for one thing each."""

import ast
from collections import Counter
from collections.abc import Iterator
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


def test_no_two_public_types_have_one_name() -> None:
    """Classes, and names of types such as `JsonObject = Mapping[str, Any]`."""
    names = Counter(name for path in MODULES for name in types_of(ast.parse(path.read_text())) if name[0] != "_")
    assert [name for name, count in names.items() if count > 1] == []


def types_of(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[0].isupper() and not name.isupper():
                if isinstance(value, ast.Call):  # a TypeVar
                    continue
                yield name
