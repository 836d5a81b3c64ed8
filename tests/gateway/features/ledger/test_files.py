"""A file with its final name is complete, even after a kill or a full disk."""

import errno
import fcntl
import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.features.ledger.files import STRANGER_SECONDS, LedgerFiles
from gateway.ledger_paths import file_name, in_progress_name
from tests.gateway.conftest import full_disk

WALL = 1_767_225_600.0
HOUR, NEXT = "date=2026-01-01/hour=00", "date=2026-01-01/hour=01"
DAY = 86_400.0


def ledger(path: Path, gateway: str = "weir-1", **rest: float) -> LedgerFiles:
    return LedgerFiles(path, gateway, **{"rotate_seconds": 300.0, "retention_seconds": 30 * DAY, "max_bytes": 10**9, **rest})


def lines(path: Path) -> dict[str, list[str]]:
    """Return the lines of all finished files, by folder."""
    found: dict[str, list[str]] = {}
    for file in sorted(path.rglob("weir-*.jsonl.gz")):
        found.setdefault(str(file.parent.relative_to(path)), []).extend(
            gzip.decompress(file.read_bytes()).decode().splitlines()
        )
    return found


def unfinished(path: Path) -> list[Path]:
    return sorted(path.rglob("_*.part"))


def test_file_gets_its_name_when_complete(tmp_path):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    files.write({HOUR: ["b"], NEXT: ["c"]}, WALL, 10.0)
    assert lines(tmp_path) == {}
    files.write({}, WALL, 300.0)
    assert lines(tmp_path) == {HOUR: ["a", "b"]}
    files.close()
    assert lines(tmp_path) == {HOUR: ["a", "b"], NEXT: ["c"]}
    assert unfinished(tmp_path) == []


def test_clock_set_back_does_not_delay_rotation(tmp_path):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    files.write({}, WALL - DAY, 299.0)
    assert lines(tmp_path) == {}
    files.write({}, WALL - DAY, 300.0)
    assert lines(tmp_path) == {HOUR: ["a"]}


def test_uncertain_time_deletes_no_file_by_age(tmp_path):
    files = ledger(tmp_path, rotate_seconds=0.0, retention_seconds=0.0)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    assert files.retain(None) == 0
    files.max_bytes = 1
    assert files.retain(None) == 1


def test_large_file_is_finished_early(tmp_path):
    files = ledger(tmp_path)
    files.max_file_bytes = 100
    files.write({HOUR: ["a"]}, WALL, 0.0)
    assert lines(tmp_path) == {}
    files.write({HOUR: [os.urandom(100).hex()]}, WALL, 0.0)
    assert len(lines(tmp_path)[HOUR]) == 2


def test_gateways_started_in_one_second_write_two_files(tmp_path):
    one, two = ledger(tmp_path), ledger(tmp_path)
    one.write({HOUR: ["a"]}, WALL, 0.0)
    two.write({HOUR: ["b"]}, WALL, 0.0)
    one.close()
    two.close()
    assert sorted(lines(tmp_path)[HOUR]) == ["a", "b"]


KILLED = """
import sys
from pathlib import Path
from gateway.ledger_paths import file_name, in_progress_name
from tests.gateway.conftest import full_disk
from gateway.features.ledger.files import LedgerFiles
files = LedgerFiles(Path(sys.argv[1]), "weir-1", rotate_seconds=300.0, retention_seconds=1e9, max_bytes=10**9)
for number in range(3):
    files.write({"date=2026-01-01/hour=00": [f"{number}-{n}" for n in range(1000)]}, 1_767_225_600.0, 0.0)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The folder of a killed gateway: two complete flushes and a torn one."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    (part,) = unfinished(tmp_path)
    os.truncate(part, part.stat().st_size - 20)
    return tmp_path


@pytest.mark.process
def test_flushed_events_survive_a_kill(killed):
    assert ledger(killed).recover(WALL) == 1
    assert lines(killed)[HOUR] == [f"{number}-{n}" for number in range(2) for n in range(1000)]
    assert unfinished(killed) == []


@pytest.mark.process
def test_old_file_of_another_gateway_is_finished(killed):
    other = ledger(killed, "weir-2")
    written = unfinished(killed)[0].stat().st_mtime
    abandoned = written + other.rotate_seconds + STRANGER_SECONDS
    assert other.recover(abandoned - 1) == 0
    assert other.recover(abandoned + 1) == 1


@pytest.mark.process
def test_running_gateway_finishes_abandoned_files(killed):
    """The killed gateway's host may never start again, or under another name."""
    other = ledger(killed, "weir-2")
    abandoned = unfinished(killed)[0].stat().st_mtime + other.rotate_seconds + STRANGER_SECONDS
    assert other.finish_abandoned(abandoned - 1) == 0
    assert other.finish_abandoned(abandoned + 1) == 1
    assert len(lines(killed)[HOUR]) == 2_000


def test_running_gateway_finishes_a_file_after_an_error(tmp_path, monkeypatch, caplog):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    files.close()
    later = unfinished(tmp_path)[0].stat().st_mtime + 2 * STRANGER_SECONDS
    assert [files.finish_abandoned(later) for _ in range(2)] == [0, 0]
    assert len([each for each in caplog.messages if "the unfinished file" in each]) == 1
    monkeypatch.undo()
    assert files.finish_abandoned(later) == 1
    assert lines(tmp_path) == {HOUR: ["a"]}


def test_file_in_use_is_left_alone(tmp_path):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    assert ledger(tmp_path).recover(WALL) == 0
    files.close()
    assert lines(tmp_path) == {HOUR: ["a"]}


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse locks, as a file server without a lock daemon does."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_lines_are_written_without_locks(tmp_path, caplog):
    files = ledger(tmp_path)
    assert files.write({HOUR: ["a"], NEXT: ["b"]}, WALL, 0.0) == 0
    files.close()
    assert lines(tmp_path) == {HOUR: ["a"], NEXT: ["b"]}
    (warning,) = caplog.messages
    assert f"files in {tmp_path} can't be locked: No locks available — give each gateway a ledger.gateway" in warning


@pytest.mark.usefixtures("no_locks")
def test_unfinished_file_is_finished_without_locks(tmp_path):
    killed = ledger(tmp_path)
    killed.write({HOUR: ["a"]}, WALL, 0.0)
    assert ledger(tmp_path).recover(WALL) == 1
    assert lines(tmp_path) == {HOUR: ["a"]}


@pytest.mark.usefixtures("no_locks")
def test_file_of_a_longer_name_is_left_without_locks(tmp_path):
    other = ledger(tmp_path, "weir-1-b")
    other.write({HOUR: ["a"]}, WALL, 0.0)
    assert ledger(tmp_path, "weir-1").recover(WALL) == 0
    other.write({HOUR: ["b"]}, WALL, 0.0)
    other.close()
    assert lines(tmp_path) == {HOUR: ["a", "b"]}


@pytest.mark.usefixtures("no_locks")
def test_gateway_leaves_its_own_open_files_alone(tmp_path):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    assert files.finish_abandoned(unfinished(tmp_path)[0].stat().st_mtime + 2 * STRANGER_SECONDS) == 0


def test_file_that_another_gateway_finishes_first_is_no_error(tmp_path, monkeypatch, caplog):
    killed = ledger(tmp_path)
    killed.write({HOUR: ["a"]}, WALL, 0.0)
    real_glob = Path.glob

    def listed(path, pattern, **options):
        found = list(real_glob(path, pattern, **options))
        killed.close()
        return iter(found)

    monkeypatch.setattr(Path, "glob", listed)
    assert ledger(tmp_path).recover(WALL) == 0
    assert caplog.messages == []
    assert lines(tmp_path) == {HOUR: ["a"]}


def test_file_that_a_starting_gateway_has_locked_is_left(tmp_path, monkeypatch):
    """A gateway of the same name takes the empty file for one of its own, and is about to delete it."""
    real_flock, others = fcntl.flock, []

    def flock_late(descriptor, operation):
        if not others:
            others.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR))
            real_flock(others[0], operation)
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    files = ledger(tmp_path)
    assert files.write({HOUR: ["a"]}, WALL, 0.0) == 0
    files.close()
    os.close(others[0])
    assert lines(tmp_path) == {HOUR: ["a"]}


def test_file_without_complete_lines_is_deleted(tmp_path):
    folder = tmp_path / HOUR
    folder.mkdir(parents=True)
    (folder / in_progress_name(file_name("weir-1", 0, 0))).write_bytes(gzip.compress(b"a\n")[:-1])
    assert ledger(tmp_path).recover(WALL) == 1
    assert list(folder.iterdir()) == []


def test_full_disk_loses_only_events_without_room(tmp_path, caplog):
    files = ledger(tmp_path)
    large = [os.urandom(3_000).hex(), "x"]
    with full_disk():
        assert files.write({HOUR: ["a"]}, WALL, 0.0) == 0
        assert files.write({HOUR: large}, WALL, 0.0) == 0
        assert files.write({HOUR: large}, WALL, 0.0) == 2
        assert "2 events are lost: File too large — free space for" in caplog.text
        assert files.write({HOUR: ["b"]}, WALL, 0.0) == 0
        files.close()
    assert lines(tmp_path)[HOUR] == ["a", *large, "b"]


def test_old_files_are_deleted(tmp_path):
    files = ledger(tmp_path, rotate_seconds=0.0)
    files.write({HOUR: ["a"], NEXT: ["b"]}, WALL, 0.0)
    (old,) = (tmp_path / HOUR).iterdir()
    os.utime(old, (WALL, WALL))
    (young,) = (tmp_path / NEXT).iterdir()
    os.utime(young, (WALL + DAY, WALL + DAY))
    assert files.retain(WALL + 30 * DAY + 1) == 1
    assert lines(tmp_path) == {NEXT: ["b"]}
    assert not (tmp_path / HOUR).exists()


def test_old_unsent_lines_are_deleted(tmp_path):
    """Such as those for an earlier `ledger.topic`."""
    for name, age in (("_unsent-1.jsonl", 31), ("_unsent-2.jsonl.part", 31), ("_unsent-3.jsonl", 29)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (WALL - age * DAY, WALL - age * DAY))
    assert ledger(tmp_path).retain(WALL) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["_unsent-3.jsonl"]


def test_oldest_files_are_deleted_over_max_bytes(tmp_path):
    files = ledger(tmp_path, rotate_seconds=0.0, max_bytes=40)
    for hour in (HOUR, NEXT):
        files.write({hour: ["abc"]}, WALL, 0.0)
    assert files.retain(WALL) == 1
    assert lines(tmp_path) == {NEXT: ["abc"]}


@pytest.mark.parametrize(("most", "left"), [(0, 0), (2, 2)])
def test_file_that_cannot_be_deleted_stays_alone(tmp_path, monkeypatch, most, left):
    """Others go if they are too many, but not in its place."""
    files = ledger(tmp_path)
    for number in range(3):
        files.write({HOUR: ["a"]}, WALL + number, 0.0)
        files.close()
    first, *others = sorted(tmp_path.rglob("weir-*.gz"))
    files.max_bytes = most * first.stat().st_size
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path == first:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError, match=first.name):
        files.retain(WALL)
    assert sorted(tmp_path.rglob("weir-*.gz")) == [first, *others[2 - left :]]


@pytest.mark.parametrize("again", [True, False])
def test_lines_of_a_deleted_file_count_as_lost(tmp_path, caplog, again):
    """Later lines of the same folder go to a new file."""
    files = ledger(tmp_path)
    files.write({HOUR: ["a", "b"], NEXT: ["c"]}, WALL, 0.0)
    shutil.rmtree(tmp_path / HOUR)
    if again:
        assert files.write({HOUR: ["d"]}, WALL, 1.0) == 2
        assert files.write({}, WALL, 301.0) == 0
        assert lines(tmp_path) == {HOUR: ["d"], NEXT: ["c"]}
    else:
        assert files.write({}, WALL, 301.0) == 2
        assert lines(tmp_path) == {NEXT: ["c"]}
    assert "2 events are lost" in caplog.text


def test_folder_that_another_worker_deletes_is_made_again(tmp_path, monkeypatch):
    """Workers share the folders, and each deletes the empty ones."""
    real_open, opened = os.open, []

    def open_late(path, *rest):
        if not opened:
            assert ledger(tmp_path, "weir-2").retain(WALL) == 0
        opened.append(path)
        return real_open(path, *rest)

    files = ledger(tmp_path)
    monkeypatch.setattr(os, "open", open_late)
    assert files.write({HOUR: ["one"]}, WALL, 0.0) == 0
    files.close()
    assert lines(tmp_path) == {HOUR: ["one"]}


def test_empty_folder_that_is_gone_already_is_no_error(tmp_path, monkeypatch):
    for folder in (HOUR, "date=2001-01-01/hour=02"):
        (tmp_path / folder).mkdir(parents=True)
    real_iterdir = Path.iterdir

    def listed(path):
        if path.name.startswith("hour="):
            path.rmdir()
        return real_iterdir(path)

    monkeypatch.setattr(Path, "iterdir", listed)
    assert ledger(tmp_path).retain(WALL) == 0
    assert list(tmp_path.glob("date=*")) == []


def test_lost_file_of_a_file_server_is_replaced(tmp_path, monkeypatch, caplog):
    files = ledger(tmp_path)
    files.write({HOUR: ["a"]}, WALL, 0.0)
    (part,) = files._parts.values()
    fstat = os.fstat

    def stale(descriptor: int) -> os.stat_result:
        if descriptor == part.descriptor:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", stale)
    assert files.write({HOUR: ["b"]}, WALL, 1.0) == 1
    monkeypatch.undo()
    files.close()
    assert lines(tmp_path) == {HOUR: ["b"]}
    assert "1 events are lost" in caplog.text
