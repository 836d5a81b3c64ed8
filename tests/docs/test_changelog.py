"""CHANGELOG.md names the commit of each release, and later changes are not in a release's section."""

import re
import tomllib
from pathlib import Path

import pytest

from loadtest.testkit.paths import CHECKOUT
from tests.last_release import LAST_RELEASE, releases

CHANGELOG = CHECKOUT / "CHANGELOG.md"
VERSION = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]


def test_each_release_names_its_commit() -> None:
    text = CHANGELOG.read_text()
    versions = re.findall(r"(?m)^## \[(\d+\.\d+\.\d+)\]", text)
    assert [release.version for release in releases(text)] == [version for version in versions if version != VERSION]


@pytest.mark.process
def test_section_of_the_last_release_stays_as_it_was(tmp_path: Path) -> None:
    """A change that came later belongs to *Unreleased*: readers of the changes since that release would miss it."""
    LAST_RELEASE.unpack(tmp_path, CHANGELOG.name)

    def changes(file: Path) -> str:
        section = file.read_text().partition(f"\n## [{LAST_RELEASE.version}]")[2].partition("\n## [")[0]
        return section[section.index("\n### ") :]

    assert changes(CHANGELOG) == changes(tmp_path / CHANGELOG.name)
