"""Files that are replaced whole: what a failed save leaves behind."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.files.whole_file import replace_file, replace_files


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit files to 4 KiB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_failed_write_leaves_no_new_files(tmp_path: Path) -> None:
    """Otherwise they take the last space of a full disk."""
    with pytest.raises(OSError, match="too large"):
        replace_files({tmp_path / "a": ["one"], tmp_path / "b": ["x" * 10_000]}, durable=False)
    assert list(tmp_path.iterdir()) == []


def test_failed_rename_leaves_no_new_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError):
        replace_files({tmp_path / "a": ["one"], tmp_path / "b": ["two"]}, durable=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_new_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    """It may belong to another user: then only its folder is writable. A link would lead the write elsewhere."""
    (tmp_path / "other").write_text("stays")
    (tmp_path / "a.new").symlink_to("other")
    replace_file(tmp_path / "a", ["one"], durable=True)
    assert (tmp_path / "a").read_text() == "one"
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "other").read_text() == "stays"


def test_replace_follows_links_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to("disk/kept")
    replace_file(tmp_path / "a", ["one"], durable=True)
    replace_file(tmp_path / "a", ["two"], durable=True)
    assert str((tmp_path / "a").readlink()) == "disk/kept"
    assert (tmp_path / "disk" / "kept").read_text() == "two"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["kept"]
