"""Small files of the driver: on this machine, and on any Hadoop file system."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.gateway.reports.conftest import SPARK

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


def test_folder_deleted_during_a_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.13, `Path.glob` raises an error then."""
    from gateway.reports.job.folders import LocalFolder

    for hour in ("hour=01", "hour=02"):
        (tmp_path / hour).mkdir()
        (tmp_path / hour / "a.gz").write_text("12")
    glob = Path.glob

    def deleted_meanwhile(path: Path, pattern: str) -> list[Path]:
        if (tmp_path / "hour=01").exists():
            shutil.rmtree(tmp_path / "hour=01")
            raise FileNotFoundError(tmp_path / "hour=01")
        return list(glob(path, pattern))

    monkeypatch.setattr(Path, "glob", deleted_meanwhile)
    assert LocalFolder(str(tmp_path)).lengths("hour=*/*.gz") == {f"{tmp_path}/hour=02/a.gz": 2}


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
