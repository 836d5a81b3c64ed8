"""A wheel in a fresh virtual environment.

    python -m loadtest.testkit.installation WHEEL ...

installs each wheel and prints its version and build.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_TIMEOUT = 300.0


class Installation:
    """Makes `folder`, and installs a wheel into it. The dependencies are those of this process, so no network is needed."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.program = folder / "bin" / "weir"
        python = folder / "bin" / "python"
        # The command names the program itself, so that a venv in a venv has the same Python.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_TIMEOUT)
        command = [sys.executable, "-m", "pip", "--python", str(python), "--isolated", "install", "--quiet"]
        # With PYTHONPATH, pip would find the compiled build's metadata, and take Weir for installed.
        environ = self.environment()
        subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], env=environ, check=True, timeout=_TIMEOUT)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        # Python reads no .pth file of this folder, such as that of Weir's editable installation.
        (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(self.program), *map(str, arguments)]

    @staticmethod
    def environment() -> dict[str, str]:
        """The variables of this process without those that let Python import the checkout or its compiled build."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(self, *arguments: str | Path, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Run `weir` with `arguments` in `folder`."""
        environ = self.environment()
        command = self.command(*arguments)
        return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT)


def main(wheels: list[str]) -> int:
    """Returns 0 if each wheel works and says the build that its tag promises."""
    failed = 0
    for wheel in map(Path, wheels):
        with tempfile.TemporaryDirectory(prefix="weir-installed-") as name:
            folder = Path(name)
            done = Installation(wheel.absolute(), folder / "venv").run("--version", folder=folder)
        print(f"{wheel}: {(done.stdout or done.stderr).strip()}")
        expected = "interpreted" if wheel.name.endswith("-none-any.whl") else "compiled"
        failed += f"({expected})" not in done.stdout
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
