"""The restore file: exact values, never overwritten, only for its owner, and clear errors."""

import json
import stat
from pathlib import Path

import pytest

from gateway.migration import MigrationError, restore_file
from gateway.migration.broker_quotas import entity_of
from tests.gateway.conftest import full_disk

LIFTED = {
    entity_of({"user": "alice", "client-id": None}): {"producer_byte_rate": 9.223372036854775807e18, "consumer_byte_rate": 1.0},
    entity_of({"user": "jürgen\n☃"}): {"controller_mutation_rate": 0.1},
}
KEPT = {entity_of({"client-id": "etl"}): {"request_percentage": 200.5}}


def content() -> restore_file.RestoreFile:
    return restore_file.restore_file("a-cluster", ["broker1:9092"], LIFTED, KEPT, 0.0)


def test_file_keeps_exact_quotas(tmp_path: Path) -> None:
    path = tmp_path / "restore.json"
    restore_file.write(path, content())
    found = restore_file.read(path)
    assert (found.lifted_quotas(), found.kept_quotas()) == (LIFTED, KEPT)
    assert (found.cluster_id, found.bootstrap_servers, found.written_at) == (
        "a-cluster", ["broker1:9092"], "1970-01-01T00:00:00+00:00",
    )  # fmt: skip


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "restore.json"
    restore_file.write(path, content())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path, link = tmp_path / "restore.json", tmp_path / "link.json"
    path.write_text("precious")
    link.symlink_to(tmp_path / "nowhere")
    for name in (path, link):
        for attempt in (lambda name=name: restore_file.check_new(name), lambda name=name: restore_file.write(name, content())):
            with pytest.raises(MigrationError, match=r"exists, and may be the only copy .* --restore-file"):
                attempt()
    assert path.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_missing_folder_is_named_before_anything_changes(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "restore.json"
    with pytest.raises(MigrationError, match=f"the folder {path.parent} does not exist — create it"):
        restore_file.check_new(path)
    with pytest.raises(MigrationError, match="can't be written: No such file or directory; nothing has been changed"):
        restore_file.write(path, content())


def test_closed_folder_is_named_before_anything_changes(closed_folder: Path) -> None:
    with pytest.raises(MigrationError, match="can't be written: no permission to write to its folder"):
        restore_file.check_new(closed_folder / "restore.json")


def test_half_a_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "restore.json"
    with full_disk(100), pytest.raises(MigrationError, match="can't be written: File too large; nothing has been changed"):
        restore_file.write(path, content())
    assert list(tmp_path.iterdir()) == []


GOOD = json.loads(content().model_dump_json())
ENTRY = {"entity": {"user": "a"}, "quotas": {"producer_byte_rate": 1.0}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("quotas: {}", "is not a restore file: it is not JSON — name the file that `weir quotas lift` wrote"),
        ("[" * 100_000, "is not a restore file: it is not JSON"),
        ("[]", 'it has no "format"'),
        ('{"version": 1}', 'it has no "format"'),
        (json.dumps(GOOD | {"version": 2}), "has the version 2, and this Weir reads 1 — use the Weir that wrote it"),
        (json.dumps(GOOD | {"lifted": []}), "is damaged at lifted"),
        (json.dumps(GOOD | {"lifted": [{**ENTRY, "quotas": {"producer_byte_rate": "1"}}]}), "is damaged at lifted.0.quotas"),
        (json.dumps(GOOD | {"lifted": [ENTRY, ENTRY]}), "damaged at lifted: an entity appears twice"),
        (json.dumps(GOOD | {"more": 1}), "is damaged at more"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "cluster_id"}), "is damaged at cluster_id"),
        (json.dumps(GOOD)[:-30], "it is not JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "restore.json"
    path.write_text(text)
    with pytest.raises(MigrationError) as error:
        restore_file.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert problem in str(error.value)
    assert " — " in str(error.value)


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"\xff\xfe"), Path.mkdir, lambda path: None])
def test_unreadable_file_is_named(tmp_path: Path, make) -> None:
    path = tmp_path / "restore.json"
    make(path)
    with pytest.raises(MigrationError, match=r"restore.json: (can't be read|is not a restore file).* — name the file"):
        restore_file.read(path)
