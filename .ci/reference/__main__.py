"""Writes the pages of docs/reference that follow from the code.

python .ci/reference            writes the pages
python .ci/reference --check    exits with 1 if a page differs from the code
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # imports this checkout's code, not an installed one

import admin_api  # noqa: E402
import chart_values  # noqa: E402
import command_line  # noqa: E402
import configuration  # noqa: E402
import metric_rows  # noqa: E402
import sample  # noqa: E402

FOLDER = ROOT / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.page,
    "weir.yaml": sample.page,
    "metrics.md": metric_rows.page,
    "admin-api.md": admin_api.page,
    "openapi.yaml": admin_api.openapi,
    "command-line.md": command_line.page,
    "chart-values.md": chart_values.page,
}


def stale() -> list[str]:
    """The names of the pages that differ from the code."""
    return [
        name for name, make in PAGES.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != make()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        for name in stale():
            sys.stderr.write(f"docs/reference/{name} differs from the code; run: python .ci/reference\n")
        return int(bool(stale()))
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
