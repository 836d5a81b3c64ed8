"""No two public classes of the gateway share a name."""

import re
from collections import Counter
from pathlib import Path


def test_no_class_name_is_shared():
    names: Counter[str] = Counter()
    for path in (Path(__file__).parents[2] / "gateway").rglob("*.py"):
        names.update(re.findall(r"^ *class ([^\W_]\w*)[(:\[]", path.read_text("utf-8"), re.MULTILINE))
    assert names["Gateway"] == 1
    assert {name for name, count in names.items() if count > 1} == set()
