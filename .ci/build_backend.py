"""The build backend: setuptools, and mypyc for wheels that are built with WEIR_COMPILE=1.

    WEIR_COMPILE=1 pip wheel --no-deps .

`[tool.weir] compiled` in pyproject.toml lists the compiled modules. Other wheels and editable installations are pure Python.
"""

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from setuptools import Extension, build_meta, setup
from setuptools.command.sdist import sdist

COMPILE = os.environ.get("WEIR_COMPILE") == "1"
PROJECT = tomllib.loads(Path("pyproject.toml").read_text())

Settings = Mapping[str, str | list[str] | None] | None


def extensions() -> list[Extension]:
    """The compiled modules. Raises SystemExit for a pattern that matches no module."""
    from mypyc.build import mypycify

    modules = []
    for pattern in PROJECT["tool"]["weir"]["compiled"]:
        found = [str(file) for file in Path().glob(pattern) if file.name != "__init__.py"]
        if not found:
            raise SystemExit(f"pyproject.toml: [tool.weir] compiled: {pattern!r} matches no module — correct or remove it")
        modules += found
    built = mypycify(sorted(modules))
    for extension in built:
        # Python's own flags hold -Wall, whose analysis takes GCC more than half of its time for C that nobody writes or reads.
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-all"]
    return built


class SourceDistribution(sdist):
    """The packages and this backend, so that a wheel can be built from it; setuptools adds a part of the tests instead."""

    def make_release_tree(self, base_dir: str, files: Iterable[str]) -> None:
        sources = [file for file in files if not file.startswith("tests/")]
        super().make_release_tree(base_dir, [*sources, os.path.relpath(__file__)])


class Backend(type(build_meta.build_wheel.__self__)):
    """The hooks of PEP 517 and PEP 660."""

    def get_requires_for_build_wheel(self, config_settings: Settings = None) -> list[str]:
        requires = super().get_requires_for_build_wheel(config_settings)
        if COMPILE:
            # mypyc reads the types of everything that the modules import, so it needs the gateway's own dependencies as well.
            requires += [*PROJECT["project"]["dependencies"], "mypy[mypyc]>=2.4", "types-PyYAML>=6.0"]
        return requires

    def run_setup(self, setup_script: str = "setup.py") -> None:  # noqa: ARG002 (there is no setup.py)
        # The other commands need no extensions, and an extension in place would win over its source.
        modules = extensions() if COMPILE and "bdist_wheel" in sys.argv else []
        setup(ext_modules=modules, cmdclass={"sdist": SourceDistribution})


_BACKEND = Backend()
get_requires_for_build_wheel = _BACKEND.get_requires_for_build_wheel
get_requires_for_build_editable = _BACKEND.get_requires_for_build_editable
get_requires_for_build_sdist = _BACKEND.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = _BACKEND.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _BACKEND.prepare_metadata_for_build_editable
build_wheel = _BACKEND.build_wheel
build_editable = _BACKEND.build_editable
build_sdist = _BACKEND.build_sdist
