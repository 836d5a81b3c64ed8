"""The sizes by which Spark is configured for small ledgers and short runs."""

import json
import sys
from pathlib import Path

from gateway.reports.job.session import ledger_bytes
from gateway.reports.job.state import LAYOUT


def test_files_of_done_hours_are_not_new(tmp_path: Path) -> None:
    for hour, size in enumerate((10, 200, 3000)):
        folder = tmp_path / f"ledger/date=2026-11-21/hour={hour:02d}"
        folder.mkdir(parents=True)
        (folder / f"weir-{hour}.jsonl.gz").write_bytes(b"x" * size)
    ledger, out = f"{tmp_path}/ledger", f"{tmp_path}/out"
    assert ledger_bytes(ledger, out) == (3210, 3210)
    done = tmp_path / "out/_state" / LAYOUT / "done"
    done.mkdir(parents=True)
    hours = [{"files": [["weir-0.jsonl.gz", 10], ["weir-1.jsonl.gz", 199]]}]
    (done / "000000001.json").write_text(json.dumps({"batches": [{"hours": hours}]}))
    assert ledger_bytes(ledger, out) == (3210, 3200), "a file with another length is new"


def test_ledger_elsewhere_counts_as_large() -> None:
    assert ledger_bytes("hdfs:///weir/ledger", "report") == (sys.maxsize, sys.maxsize)
