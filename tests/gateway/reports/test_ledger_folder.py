"""The files of a ledger's hours: two folders of one hour, and files that Spark can't read by their names."""

import datetime as dt
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.events import UsageSample
from gateway.ledger_paths import partition
from gateway.reports.job.period import Period
from loadtest.scenarios.ledger.files import write_events
from tests.gateway.reports.conftest import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.reports.job.ledger import LedgerFolder

pytestmark = SPARK

SEVEN = int(dt.datetime(2026, 11, 20, 7, tzinfo=dt.UTC).timestamp()) * 1000
HOUR = partition(SEVEN)


def write(ledger: Path, *users: str) -> Path:
    """The only new file, of the hour 07."""
    before = {*ledger.glob(f"{HOUR}/*")}
    write_events(ledger, [UsageSample(time_ms=SEVEN, gateway="weir-0", kind="fetch", user=user, amount=1.0) for user in users])
    (file,) = {*ledger.glob(f"{HOUR}/*")} - before
    return file


def move(file: Path, name: str) -> Path:
    """Move a file into the folder `hour=7`."""
    (other := file.parents[1] / "hour=7").mkdir(exist_ok=True)
    return file.replace(other / name)


def read(spark: "SparkSession", path: Path) -> "tuple[LedgerFolder, list[str]]":
    """The ledger after a list of its files, and the users of its lines."""
    from gateway.reports.job.ledger import LedgerFolder

    ledger = LedgerFolder(spark, str(path))
    hours = [*ledger.files(Period())]
    return ledger, sorted(row.user for row in ledger.lines(hours).select("user").collect())


@pytest.mark.parametrize("copied", [False, True])
def test_both_folders_of_an_hour_are_read(spark: "SparkSession", tmp_path: Path, copied: bool) -> None:
    moved = move(write(tmp_path, "ada"), "other.jsonl.gz")
    whole = write(tmp_path, "bob")
    if copied:
        shutil.copy(whole, moved.parent)
    ledger, users = read(spark, tmp_path)
    assert users == ["ada", "bob"]
    assert not any(ledger.unreadable.values())


def test_second_file_of_one_name_is_left_out_by_name(spark: "SparkSession", tmp_path: Path) -> None:
    moved = move(write(tmp_path, "ada", "carol"), "a.jsonl.gz")
    write(tmp_path, "bob").rename(tmp_path / HOUR / "a.jsonl.gz")
    ledger, users = read(spark, tmp_path)
    assert users == ["bob"]
    assert [*ledger.unreadable.values()] == [{f"hour=7/{moved.name}"}]


def test_name_that_is_not_utf8_is_left_out_by_name(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.ledger import shown_name

    write(tmp_path, "ada").rename(os.fsdecode(bytes(tmp_path / HOUR) + b"/a\xff.jsonl.gz"))
    write(tmp_path, "bob")
    ledger, users = read(spark, tmp_path)
    assert users == ["bob"]
    assert [shown_name(name) for names in ledger.unreadable.values() for name in names] == [r"a\xff.jsonl.gz"]


@pytest.mark.parametrize(("link", "target"), [("up", ".."), ("sub/up", "."), ("root", "/")])
def test_folder_that_leads_back_is_refused(tmp_path: Path, link: str, target: str) -> None:
    from gateway.reports.job.folders import UnreadableFolderError
    from gateway.reports.job.session import ledger_bytes

    write(tmp_path, "ada")
    (path := tmp_path / HOUR / link).parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    with pytest.raises(UnreadableFolderError, match="Too many levels of symbolic links") as refused:
        ledger_bytes(str(tmp_path), str(tmp_path / "out"), Period())
    assert refused.value.filename == str(path)


def test_folder_within_an_hour_is_no_loop(tmp_path: Path) -> None:
    from gateway.reports.job.session import ledger_bytes

    write(tmp_path, "ada")
    (tmp_path / HOUR / "sub/sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / HOUR / "link").symlink_to(tmp_path / "elsewhere")
    assert ledger_bytes(str(tmp_path), str(tmp_path / "out"), Period())[0] > 0


def test_java_reads_names_as_utf8_in_any_locale() -> None:
    code = """
from gateway.reports.job.session import spark_session
print(spark_session("local[1]", "1g", total=0)._jvm.System.getProperty("sun.jnu.encoding"))
"""
    environment = os.environ | {"LC_ALL": "C", "PYSPARK_PYTHON": sys.executable}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["UTF-8"]
