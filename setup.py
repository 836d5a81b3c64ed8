"""The part of the build that pyproject.toml can't express: WEIR_COMPILE=1 compiles the hot path with mypyc.

    WEIR_COMPILE=1 pip wheel --no-deps .

Wheels and installations that are made without it are pure Python. `[tool.weir] compiled` in pyproject.toml lists the modules.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())
COMPILE = os.environ.get("WEIR_COMPILE") == "1"


def extensions() -> list[Extension]:
    """The compiled modules. Raises SystemExit for a pattern that matches no module."""
    # pip first runs this file to learn what the build needs; mypy is not installed yet.
    if not COMPILE or not {"egg_info", "dist_info"}.isdisjoint(sys.argv):
        return []
    from mypyc.build import mypycify

    modules = []
    for pattern in PROJECT["tool"]["weir"]["compiled"]:
        found = [str(file) for file in Path().glob(pattern) if file.name != "__init__.py"]
        if not found:
            raise SystemExit(f"pyproject.toml: [tool.weir] compiled: {pattern!r} matches no module — correct or remove it")
        modules += found
    return mypycify(sorted(modules))


# mypyc reads the types of everything that the modules import, so the build needs the dependencies of the gateway as well.
needed = [*PROJECT["project"]["dependencies"], "mypy[mypyc]>=2.4", "types-PyYAML>=6.0"]
setup(ext_modules=extensions(), setup_requires=needed if COMPILE else [])
