"""The newest release, at the commit that CHANGELOG.md names."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.testkit.paths import CHECKOUT

TIMEOUT = 60.0


@dataclass(frozen=True)
class Release:
    version: str
    commit: str

    def archive(self, *paths: str) -> bytes:
        """A tar file of these paths. Skips the test if the history is not here."""
        command = ["git", "-C", str(CHECKOUT), "archive", self.commit, *paths]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT)
        except FileNotFoundError:
            pytest.skip(f"git is not on the PATH, so that Weir {self.version} can't be read from the history")
        if done.returncode:
            pytest.skip(f"the history lacks {self.commit}, Weir {self.version}: clone the repository with its whole history")
        return done.stdout

    def unpack(self, folder: Path, *paths: str) -> None:
        """Write these paths below `folder`. Skips the test if the history is not here."""
        subprocess.run(["tar", "-x", "-C", str(folder)], input=self.archive(*paths), check=True, timeout=TIMEOUT)


def releases(changelog: str) -> list[Release]:
    """The releases with a commit, newest first. No commit can name itself, so the newest section may lack it."""
    found = re.findall(r"(?mi)^## \[(\d+\.\d+\.\d+)\].*\n\n.*\bcommit ([0-9a-f]{7,40})\.$", changelog)
    return [Release(version, commit) for version, commit in found]


LAST_RELEASE = releases((CHECKOUT / "CHANGELOG.md").read_text())[0]
