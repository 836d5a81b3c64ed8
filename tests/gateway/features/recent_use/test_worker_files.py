"""The files of recent use after a start with another number of `workers`."""

import asyncio
from pathlib import Path

import pytest

from gateway.features.quota_api.config import StateConfig
from gateway.features.recent_use.usage_file import entity_line, read_usage, write_usage
from gateway.features.recent_use.worker_files import give_newest_save
from gateway.files.flock import FileLock
from gateway.quotas.entity import Tags
from gateway.quotas.meter import PastUse
from gateway.quotas.recent_use import BucketUse, Moment, RecentUse
from gateway.quotas.settings import Metering

STATE = StateConfig()


def files(folder: Path, workers: int) -> list[Path]:
    return STATE.usage_files(folder / "weir.yaml", workers)


def save(path: Path, wall: float, client_id: str) -> None:
    use = RecentUse(100.0, Metering(), (PastUse(0.0, 0.0, 50.0),))
    write_usage(path, Moment("", 0.0, wall), [entity_line(BucketUse("produce", Tags(None, client_id), use))])


def clients(path: Path) -> list[str | None]:
    return [each.tags.client_id for each in read_usage(path).entities]


def start(folder: Path, workers: int) -> None:
    asyncio.run(give_newest_save(STATE.usage_file(folder / "weir.yaml"), files(folder, workers)))


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 4), (4, 2)])
def test_each_process_begins_with_the_use_before(tmp_path: Path, before: int, after: int) -> None:
    for path in files(tmp_path, before):
        save(path, 1_000.0, "etl")
    start(tmp_path, after)
    assert [clients(path) for path in files(tmp_path, after)] == [["etl"]] * after
    assert sorted(tmp_path.iterdir()) == sorted(files(tmp_path, after))


def test_same_number_of_workers_keeps_each_file(tmp_path: Path) -> None:
    for number, path in enumerate(files(tmp_path, 2)):
        save(path, 1_000.0 + number, f"client-{number}")
    start(tmp_path, 2)
    assert [clients(path) for path in files(tmp_path, 2)] == [["client-0"], ["client-1"]]


def test_newest_file_is_taken_over_if_others_are_left(tmp_path: Path) -> None:
    """An earlier Weir did not delete the files of other numbers."""
    (single,), workers = files(tmp_path, 1), files(tmp_path, 3)
    for path, wall in zip((single, *workers), (3_000.0, 1_000.0, 2_000.0, 4_000.0), strict=True):
        save(path, wall, f"at {wall:g}")
    workers[2].write_text("not what Weir has written")
    start(tmp_path, 2)
    assert [clients(path) for path in workers[:2]] == [["at 3000"], ["at 3000"]]
    assert not single.exists()


def test_file_with_a_lock_belongs_to_another_gateway(tmp_path: Path) -> None:
    (single,), (other, _) = files(tmp_path, 1), files(tmp_path, 2)
    save(other, 1_000.0, "of another gateway")
    other.with_name(f"{other.name}.lock").touch()
    start(tmp_path, 1)
    assert (other.exists(), single.exists()) == (True, False)


def test_link_to_the_file_stays(tmp_path: Path) -> None:
    (single,) = files(tmp_path, 1)
    (tmp_path / "disk").mkdir()
    single.symlink_to(tmp_path / "disk" / "usage")
    save(single, 1_000.0, "etl")
    start(tmp_path, 2)
    assert (single.is_symlink(), single.exists()) == (True, False)
    assert clients(files(tmp_path, 2)[1]) == ["etl"]
    start(tmp_path, 1)
    assert clients(tmp_path / "disk" / "usage") == ["etl"]


def test_file_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (single,), (first, _) = files(tmp_path, 1), files(tmp_path, 2)
    save(single, 1_000.0, "etl")
    first.with_name(f"{first.name}.new").mkdir()
    start(tmp_path, 2)
    (warning,) = caplog.messages
    assert "can't be taken over, so clients may start with a full burst: Is a directory — remove the folder" in warning
    assert clients(single) == ["etl"]


def test_missing_folder_has_no_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(tmp_path / "later", 2)
    assert caplog.messages == []


def test_linked_file_of_another_gateway_is_kept(tmp_path: Path) -> None:
    """A gateway locks the file beside the target of a link."""
    (single,), workers = files(tmp_path, 1), files(tmp_path, 4)
    target = tmp_path / "disk" / "usage.jsonl"
    target.parent.mkdir()
    save(target, 1_000.0, "of another")
    workers[3].symlink_to(target)
    lock = FileLock("state.usage_path", workers[3])
    assert lock.take()
    start(tmp_path, 1)
    lock.release()
    assert (clients(target), single.exists()) == (["of another"], False)
