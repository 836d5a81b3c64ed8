"""The ledger size up to which Spark is configured for small data."""

from pathlib import Path

import pytest

from gateway.reports.job.session import SMALL_BYTES, is_small


@pytest.mark.parametrize(("sizes", "small"), [((), True), ((SMALL_BYTES - 1,), True), ((1, SMALL_BYTES - 1), False)])
def test_ledger_size_decides_local_mode(tmp_path: Path, sizes: tuple[int, ...], small: bool) -> None:
    for hour, size in enumerate(sizes):
        folder = tmp_path / f"date=2026-11-21/hour={hour:02d}"
        folder.mkdir(parents=True)
        with (folder / "weir-0.jsonl.gz").open("wb") as file:
            file.truncate(size)
    assert is_small(str(tmp_path)) is small


def test_ledger_elsewhere_counts_as_large() -> None:
    assert not is_small("hdfs:///weir/ledger")
