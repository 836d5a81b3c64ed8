"""The archive of Java's classes, and the runs that write or read it."""

import os
import time
from pathlib import Path

import pytest

from gateway.reports.job.class_archive import class_archive
from gateway.reports.job.command import java_file

pytestmark = pytest.mark.skipif(java_file() is None, reason="needs Java")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "weir"


def test_archive_is_written_once_and_then_read(cache: Path) -> None:
    first = class_archive(worth=True)
    assert first is not None
    assert first.is_due
    assert f'-XX:ArchiveClassesAtExit="{cache}/classes-' in first.options
    first.path.touch()
    later = class_archive(worth=True)
    assert later is not None
    assert not later.is_due
    assert f'-XX:SharedArchiveFile="{first.path}"' in later.options


def test_run_without_need_starts_java_without_archive(cache: Path) -> None:
    found = class_archive(worth=False)
    assert found is not None
    assert (found.is_due, found.options) == (False, "")
    assert not cache.exists()


def test_other_java_gets_an_archive_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = class_archive(worth=False)
    (cache / "bin").mkdir(parents=True)
    (cache / "bin/java").touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(cache))
    after = class_archive(worth=False)
    assert before is not None
    assert after is not None
    assert before.path != after.path


def test_archive_that_no_run_reads_is_deleted(cache: Path) -> None:
    cache.mkdir()
    unused, recent = cache / "classes-1.jsa", cache / "classes-2.jsa"
    for archive, days in ((unused, 31), (recent, 29)):
        archive.touch()
        os.utime(archive, (time.time() - days * 86_400,) * 2)
    read = class_archive(worth=False)
    assert read is not None
    assert set(cache.iterdir()) == {recent}


def test_read_archive_is_kept(cache: Path) -> None:
    found = class_archive(worth=True)
    assert found is not None
    found.path.touch()
    os.utime(found.path, (0, 0))
    class_archive(worth=True)
    assert found.path.exists()


def test_no_archive_without_a_folder_or_with_spark_submit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.touch()
    assert class_archive(worth=True) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "other"))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert class_archive(worth=True) is None
