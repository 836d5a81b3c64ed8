"""The language check: each rule has hits, and plain sentences have none."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "check-language"
loader = importlib.machinery.SourceFileLoader("check_language", str(SCRIPT))
spec = importlib.util.spec_from_loader("check_language", loader)
assert spec
check_language = importlib.util.module_from_spec(spec)
loader.exec_module(check_language)

LONG = " ".join(["word"] * 26)


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.md", "# Who is muted\n", [(1, "clause")]),
        ("a.md", "The client waits.\nWhat it sends\nis held.\n", [(2, "clause")]),
        ("a.md", "Where the broker is down, nothing happens.\n", [(1, "clause")]),
        ("a.md", "| key | whether it is on |\n", [(1, "clause")]),
        ("a.md", "- fine\n- that which counts\n", [(2, "clause")]),
        ("a.md", "The gateway held back a client.\n", [(1, "name")]),
        ("a.md", f"{LONG}.\n", [(1, "length")]),
        ("a.md", "# What does it do?\n\n```\nwhat --ever\n```\n`what` is code. `a b`\n", []),
        ("a.md", "We can tell a client apart.\n", []),
        ("a.md", "The events that a target is told.\n", [(1, "name")]),
        ("a.md", "Call `file.tell()` or file.tell(0), a tell-tale of `told`.\n", []),
        ("a.py", '"""Whether it is."""\n', [(1, "clause")]),
        ("a.py", 'def f():\n    """A sum.\n\n    Who asks is counted.\n    """\n', [(4, "clause")]),
        ("a.py", "# The reason is long,\n# and here. Whoever comes waits.\n", [(2, "clause")]),
        ("a.py", 'print("the client is told about its throttle time")\n', [(1, "name")]),
        ("a.py", 'raise OSError(f"{x} is what the broker said to us")\n', []),
        ("a.py", 'HELP = """These are examples of commands:\n  weir what ever it is\n"""\n', []),
        ("a.py", "class Painter: ...\n", [(1, "name")]),
        ("a.py", "def test_" + 56 * "a" + "(): ...\n", [(1, "test name")]),
        ("a.py", "def test_what_is_left_is_kept(): ...\n", [(1, "test name")]),
        ("a.py", "x = 1  # noqa: E501\n# type: ignore\n", []),
        ("a.yaml", "key: 1  # what it is\n", [(1, "clause")]),
        ("a.yaml", "# key: whoever\n", []),
        ("a.yaml", "## Long.\n#key: 1\n## Whoever it is.\n#  - inner: [1, 2]\n", [(3, "clause")]),
        ("Makefile", "demo: setup ## whatever it takes\n", [(1, "clause")]),
    ],
)
def test_hits(name: str, source: str, expected: list[tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / name).write_text(source)
    assert [(line, rule) for line, rule, _ in check_language.hits(tmp_path / name)] == expected
