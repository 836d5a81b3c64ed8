"""The size of a partition's log, from its files."""

from pathlib import Path

from loadtest.scenarios.evenness.logs import LogCounter


def test_only_log_segments_are_counted(tmp_path: Path) -> None:
    counter = LogCounter(tmp_path, ["topic", "other"])
    counter.sample(1.0)
    partition = tmp_path / "topic-0"
    partition.mkdir()
    (partition / "00000000000000000000.log").write_bytes(b"x" * 300)
    (partition / "00000000000000000000.index").write_bytes(b"x" * 1000)
    counter.sample(2.0)
    (partition / "00000000000000000009.log").write_bytes(b"x" * 50)
    counter.sample(3.0)
    assert counter.series("topic") == [(1.0, 0), (2.0, 300), (3.0, 350)]
    assert counter.series("other") == [(1.0, 0), (2.0, 0), (3.0, 0)]
