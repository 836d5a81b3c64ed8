"""The archive of Java's classes, and the runs that write or read it."""

from pathlib import Path

import pytest

from gateway.reports.job import class_archive as job
from gateway.reports.job.class_archive import class_archive

pytestmark = pytest.mark.skipif(job._java() is None, reason="needs Java")


def test_archive_is_written_once_and_then_read(tmp_path: Path) -> None:
    first = class_archive(str(tmp_path), worth=True)
    assert first is not None
    assert first.is_due
    assert f'-XX:ArchiveClassesAtExit="{tmp_path}/_state/classes-' in first.options
    first.path.touch()
    later = class_archive(str(tmp_path), worth=True)
    assert later is not None
    assert not later.is_due
    assert f'-XX:SharedArchiveFile="{first.path}"' in later.options


def test_run_without_need_starts_java_without_archive(tmp_path: Path) -> None:
    found = class_archive(str(tmp_path), worth=False)
    assert found is not None
    assert (found.is_due, found.options) == (False, "")
    assert list(tmp_path.iterdir()) == []


def test_other_java_gets_an_archive_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = class_archive(str(tmp_path), worth=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    after = class_archive(str(tmp_path), worth=False)
    assert before is not None
    assert after is not None
    assert before.path != after.path


def test_no_archive_outside_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert class_archive("hdfs:///weir/report", worth=True) is None
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert class_archive("report", worth=True) is None
