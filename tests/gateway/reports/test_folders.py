"""Small files of the driver: on this machine, and on any Hadoop file system."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway.reports.job.period import Period
from gateway.reports.job.state import LAYOUT
from tests.gateway.reports.conftest import SPARK, forbid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


def test_python_reads_files_of_this_machine(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.folders import LocalFolder, folder

    assert isinstance(folder(spark, str(tmp_path)), LocalFolder)
    assert not isinstance(folder(spark, f"file://{tmp_path}"), LocalFolder)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_both_folders_behave_alike(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    from gateway.reports.job.folders import folder

    path = tmp_path / "new"
    subject = folder(spark, f"{scheme}{path}")
    assert (subject.exists(), subject.names()) == (False, [])
    subject.write("page", "first, and longer")
    subject.write("page", "tschüß")
    subject.add("mark", "one")
    subject.add_folder("hour=07/table=x")
    folder(spark, f"{scheme}{path}/hour=07").write("a.gz", "12345")
    assert subject.exists()
    assert subject.names() == ["hour=07", "mark", "page"]
    assert (subject.read("page"), subject.read("mark")) == ("tschüß", "one")
    lengths = {file.rpartition("/new/")[2]: length for file, length in subject.lengths("hour=*/*.gz").items()}
    assert lengths == {"hour=07/a.gz": 5}
    assert subject.modified()["mark"] == pytest.approx((path / "mark").stat().st_mtime * 1000, abs=2)
    subject.delete("hour=07")
    subject.delete("page")
    subject.delete("missing")
    assert sorted(file.name for file in path.iterdir()) == ["mark"]


def test_local_file_is_not_added_twice(tmp_path: Path) -> None:
    from gateway.reports.job.folders import LocalFolder

    LocalFolder(str(tmp_path)).add("mark", "one")
    with pytest.raises(FileExistsError, match="exists already"):
        LocalFolder(str(tmp_path)).add("mark", "two")
    assert (tmp_path / "mark").read_text() == "one"


def hours_of(ledger: Path) -> dict[str, Path]:
    hours = {hour: ledger / f"date=2026-11-20/hour={hour}" for hour in ("01", "02")}
    for hour in hours.values():
        hour.mkdir(parents=True)
        (hour / "a.jsonl.gz").write_text("12")
    return hours


def test_folder_deleted_during_a_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.reports.job.folders import LocalFolder

    hours = hours_of(tmp_path)
    scandir = os.scandir

    def deleted_meanwhile(path: Path) -> object:
        if path == hours["01"] and path.exists():
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deleted_meanwhile)
    assert LocalFolder(str(tmp_path)).lengths("date=*/hour=*/*.gz") == {f"{hours['02']}/a.jsonl.gz": 2}


def test_file_beside_the_folders_is_left_out(tmp_path: Path) -> None:
    from gateway.reports.job.folders import LocalFolder

    hours = hours_of(tmp_path)
    (tmp_path / "date=notes").touch()
    assert len(LocalFolder(str(tmp_path)).lengths("date=*/hour=*/*.gz")) == len(hours)


@pytest.mark.parametrize("name", ["hour=02/b.jsonl.gz", "hour=03"])
def test_link_to_itself_has_its_remedy(tmp_path: Path, name: str) -> None:
    from gateway.reports.job.folders import LocalFolder, UnreadableFolderError
    from gateway.reports.job.messages import unreadable_folder

    link = hours_of(tmp_path)["02"].parent / name
    link.symlink_to(link)
    with pytest.raises(UnreadableFolderError) as refused:
        LocalFolder(str(tmp_path)).lengths("date=*/hour=*/*.gz")
    said = unreadable_folder(refused.value)
    assert said.startswith(f"{link}: can't be read (Too many levels of symbolic links); remove the symbolic link")


def test_forbidden_folder_is_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.reports.job.folders import LocalFolder, UnreadableFolderError
    from gateway.reports.job.session import ledger_bytes

    ledger, out = tmp_path / "ledger", tmp_path / "out"
    hour, marks = hours_of(ledger)["02"], out / "_state" / LAYOUT / "done"
    marks.mkdir(parents=True)
    forbid(monkeypatch, hour)
    with pytest.raises(UnreadableFolderError, match=r"Permission denied.*hour=02"):
        LocalFolder(str(ledger)).lengths("date=*/hour=*/*.gz")
    with pytest.raises(UnreadableFolderError, match=r"Permission denied.*hour=02"):
        LocalFolder(str(hour)).names()
    with pytest.raises(UnreadableFolderError, match=r"Permission denied.*hour=02"):
        ledger_bytes(str(ledger), str(out), Period())
    monkeypatch.undo()
    forbid(monkeypatch, marks)
    with pytest.raises(UnreadableFolderError, match=r"Permission denied.*done"):
        ledger_bytes(str(ledger), str(out), Period())


def test_function_of_java_is_looked_up_once() -> None:
    from gateway.reports.job.calls import call_less

    asked = []

    class Class:
        def __getattr__(self, name: str) -> str:
            asked.append(name)
            return f"function {name}"

    jvm = SimpleNamespace(**dict.fromkeys(("functions", "org.apache.spark.sql.functions", "PythonUtils"), Class()))
    settings = SimpleNamespace(enable_memory_management=True)
    context = SimpleNamespace(_jvm=jvm, _gateway=SimpleNamespace(gateway_property=settings))
    call_less(cast("Any", SimpleNamespace(sparkContext=context)), brief=True)
    assert [jvm.functions.col, jvm.functions.col] == ["function col"] * 2
    assert asked == ["col"]
    assert not settings.enable_memory_management
