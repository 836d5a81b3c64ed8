"""The settings of Spark for small ledgers, short runs and clusters."""

import datetime as dt
import json
import os
import sys
from pathlib import Path

import pytest

from gateway.reports.job.period import Period
from gateway.reports.job.session import BRIEF_BYTES, SMALL_BYTES, first_jars, ledger_bytes, own_settings
from gateway.reports.job.state import LAYOUT


def test_files_of_done_hours_are_not_new(tmp_path: Path) -> None:
    for hour, size in enumerate((10, 200, 3000)):
        folder = tmp_path / f"ledger/date=2026-11-21/hour={hour:02d}"
        folder.mkdir(parents=True)
        (folder / f"weir-{hour}.jsonl.gz").write_bytes(b"x" * size)
    no_date = tmp_path / "ledger/date=2026-13-01/hour=00"
    no_date.mkdir(parents=True)
    (no_date / "weir-9.jsonl.gz").write_bytes(b"x")
    ledger, out = f"{tmp_path}/ledger", f"{tmp_path}/out"
    assert ledger_bytes(ledger, out, Period()) == (3210, 3210)
    done = tmp_path / "out/_state" / LAYOUT / "done"
    done.mkdir(parents=True)
    hours = [{"files": [["weir-0.jsonl.gz", 10], ["weir-1.jsonl.gz", 199]]}]
    (done / "000000001.json").write_text(json.dumps({"batches": [{"hours": hours}]}))
    assert ledger_bytes(ledger, out, Period()) == (3210, 3200), "a file with another length is new"
    (done / "000000002.json").write_text("")
    assert ledger_bytes(ledger, out, Period()) == (3210, 3200), "State.load names the damaged mark"
    last = dt.date(2026, 11, 21), 2
    assert ledger_bytes(ledger, out, Period(last, last)) == (3000, 3000), "other hours do not count"


def test_file_deleted_in_the_meantime_does_not_count(tmp_path: Path) -> None:
    """A link without a target is listed, and has no size."""
    folder = tmp_path / "ledger/date=2026-11-21/hour=00"
    folder.mkdir(parents=True)
    (folder / "weir-0.jsonl.gz").symlink_to(tmp_path / "deleted")
    (folder / "weir-1.jsonl.gz").write_bytes(b"x")
    assert ledger_bytes(f"{tmp_path}/ledger", f"{tmp_path}/out", Period()) == (1, 1)


def test_ledger_elsewhere_counts_as_large() -> None:
    assert ledger_bytes("hdfs:///weir/ledger", "report", Period()) == (sys.maxsize, sys.maxsize)


@pytest.mark.parametrize(("master", "address"), [("local[*]", "127.0.0.1"), ("spark://spark-1:7077", None)])
def test_executors_on_other_hosts_reach_the_driver(master: str, address: str | None) -> None:
    found = own_settings(master, "3g", SMALL_BYTES, SMALL_BYTES)
    assert (found.get("spark.driver.host"), found.get("spark.driver.bindAddress")) == (address, address)
    assert found["spark.driver.memory"] == "3g"


def test_only_brief_run_starts_with_whole_heap() -> None:
    sizes = {"small": (1, 1), "brief": (BRIEF_BYTES, 1), "long": (BRIEF_BYTES, BRIEF_BYTES)}
    options = {name: own_settings("local[*]", "2g", *size)["spark.driver.extraJavaOptions"] for name, size in sizes.items()}
    assert [name for name in options if "-Xms2g" in options[name]] == ["brief"]


def test_jars_with_many_classes_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Path(jar).name for jar in first_jars().split(os.pathsep)]
    assert names[0].startswith("spark-catalyst_")
    assert any(name.startswith("py4j-") for name in names)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert first_jars() == "", "the jars of two versions must not mix"
