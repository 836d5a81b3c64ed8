"""The gateway as mypyc compiles it, in build/compiled: the contents of the wheel that `WEIR_COMPILE=1 pip wheel .` makes.

    python -m loadtest.testkit.compiled_build [COMMAND ...]

makes it if it is not current, and then runs the command, whose Python processes import the compiled modules.
"""

import filecmp
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from loadtest.testkit.paths import CHECKOUT

BUILD = CHECKOUT / "build" / "compiled"
PACKAGES = ("gateway", "protocol")
_BESIDE_THEM = ("pyproject.toml", ".ci/build_backend.py", "README.md", "LICENSE")
_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


class BuildError(RuntimeError):
    """mypyc or the C compiler failed; the message ends with their output."""


def compiled_modules() -> list[Path]:
    """The modules that `[tool.weir] compiled` lists, relative to the checkout. Raises BuildError if a pattern matches none."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    modules = []
    for pattern in project["tool"]["weir"]["compiled"]:
        found = [file.relative_to(CHECKOUT) for file in CHECKOUT.glob(pattern) if file.name != "__init__.py"]
        if not found:
            raise BuildError(f"pyproject.toml: [tool.weir] compiled: {pattern!r} matches no module — correct or remove it")
        modules += found
    return sorted(modules)


def stale_modules() -> list[str]:
    """The modules whose extension is missing from the build, was made of another source, or has no source any more."""
    wanted = compiled_modules()
    stale = [str(module) for module in wanted if not _same(module) or not (BUILD / module).with_suffix(_SUFFIX).exists()]
    there = {file.relative_to(BUILD).with_name(file.name.partition(".")[0] + ".py") for file in BUILD.glob("*/**/*.so")}
    return stale + sorted(str(module) for module in there.difference(wanted))


@cache
def compiled_build() -> Path:
    """Make the build current, once in a process; minutes if a compiled module has changed. Returns the folder of its packages.

    Without a C compiler it returns the checkout, which runs interpreted, and says so on stderr. Raises BuildError.
    """
    missing = _missing_tool()
    if missing is not None:
        print(f"no compiled build: {missing}; the sources run interpreted", file=sys.stderr)
        return CHECKOUT
    if stale_modules():
        print("compiling the hot path with mypyc (two to four minutes) ...", file=sys.stderr)
        _compile()
    else:
        _copy_interpreted_modules()
    return BUILD


def environment(packages: Path) -> dict[str, str]:
    """The environment variables with which Python imports `gateway` and `protocol` from `packages`."""
    path = os.pathsep.join(dict.fromkeys([str(packages), str(CHECKOUT)]))
    build = "interpreted" if packages == CHECKOUT else "compiled"
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "WEIR_BUILD": build}


def build_of(packages: Path) -> str:
    """Return `compiled` or `interpreted`, for the packages of another commit as well."""
    command = [sys.executable, "-c", "from protocol import framing; print(framing.__file__)"]
    file = subprocess.run(command, env=environment(packages), capture_output=True, text=True, check=True).stdout.strip()
    return "compiled" if file.endswith(".so") else "interpreted"


def _missing_tool() -> str | None:
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}) — apt-get install gcc"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h — apt-get install python3-dev"
    return None


def _compile() -> None:
    with tempfile.TemporaryDirectory(prefix="weir-build-") as name:
        # A copy, so that no file of an older build gets into the wheel, and an edit meanwhile is noticed by the next call.
        source = Path(name, "source")
        for folder in (*PACKAGES, "helm/systemd"):
            shutil.copytree(CHECKOUT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for file in _BESIDE_THEM:
            (source / file).parent.mkdir(exist_ok=True)
            shutil.copy2(CHECKOUT / file, source / file)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", name]
        environ = {**os.environ, "WEIR_COMPILE": "1"}
        done = subprocess.run([*command, str(source)], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"mypyc failed: {(done.stdout + done.stderr)[-3000:]}")
        shutil.rmtree(BUILD, ignore_errors=True)
        for wheel in Path(name).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(BUILD)


def _copy_interpreted_modules() -> None:
    sources = set(_files(CHECKOUT))
    for gone in [file for file in _files(BUILD) if file not in sources and file.suffix != ".so"]:
        (BUILD / gone).unlink()
    for file in sources:
        if not _same(file):
            (BUILD / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / file, BUILD / file)


def _files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for file in (root / package).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root)


def _same(file: Path) -> bool:
    copy = BUILD / file
    return copy.exists() and filecmp.cmp(CHECKOUT / file, copy, shallow=False)


def main() -> int:
    """Returns the exit code of the command, or 1 if the build fails."""
    try:
        packages = compiled_build()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return subprocess.run(sys.argv[1:], env=environment(packages), check=False).returncode if sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
