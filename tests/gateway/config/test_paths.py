"""Paths to which Weir could never write are errors; missing folders may be warnings."""

import os
from pathlib import Path

import pytest

from gateway.config.load import load_config, parse_config
from gateway.config.paths import path_warnings
from gateway.config.problems import ConfigError
from tests.gateway.config.texts import MINIMAL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("state: {path: /}", 'state.path: is a folder, where Weir needs a file (value "/", line 3) — give the path of a file'),
        ("state: {path: .}", "state.path: is a folder"),
        ("state: {usage_path: folder}", "state.usage_path: is a folder"),
        ("state: {path: file/quotas.json}", 'state.path: lies below %s/file, and that is a file, not a folder (value "file/q'),
        ("state: {path: file/a/b/quotas.json}", "state.path: lies below %s/file, and that is a file"),
        ("state: {path: loop}", "state.path: can't be used: Too many levels of symbolic links"),
        ("state: {usage_path: /dev/null}", "state.usage_path: is not a regular file, and Weir would replace it"),
        ('state: {path: "a\\0b"}', "state.path: holds a NUL character"),
        (f"state: {{path: {'x' * 300}}}", "state.path: can't be used: File name too long"),
        ("state: {path: kept.json, usage_path: ./kept.json}", "state: path and usage_path name the same file"),
        ("state: {path: weir.yaml}", "state.path: makes Weir overwrite %s/weir.yaml, which is the config file"),
        ("state: {usage_path: sub/../weir.yaml}", "state.usage_path: makes Weir overwrite %s/sub/../weir.yaml, which is the"),
        ("state: {path: a.json, usage_path: a.topics.json}", "state.usage_path: makes Weir overwrite %s/a.topics.json, which"),
        ("state: {path: a.json, usage_path: a.groups.json}", "state.usage_path: makes Weir overwrite %s/a.groups.json, which"),
        (
            "state: {usage_path: weir.state.json}",
            "state.usage_path: makes Weir overwrite %s/weir.state.json, which is a file of",
        ),
        ("workers: 2\nstate: {path: a.1.json, usage_path: a.json}", "state.usage_path: makes Weir overwrite %s/a.1.json"),
        ("ledger: {path: %s/file}", 'ledger.path: is a file (value "%s/file", line 3) — give a folder'),
        ("ledger: {path: %s/file/ledger}", "ledger.path: lies below %s/file, and that is a file, not a folder (value"),
        ("ledger: {path: %s/loop}", "ledger.path: can't be used: Too many levels of symbolic links"),
        ('ledger: {path: "a\\0b"}', "ledger.path: holds a NUL character"),
    ],
)
def test_impossible_path_is_refused(folder: Path, section: str, message: str) -> None:
    file = folder / "weir.yaml"
    file.write_text(MINIMAL + section.replace("%s", str(folder)) + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (problem,) = caught.value.problems
    assert str(problem).startswith(message.replace("%s", str(folder)))


def test_missing_folder_below_the_config_is_a_warning(folder: Path) -> None:
    config = parse_config(MINIMAL + "state: {path: new/kept.json}\n", source="weir.yaml", directory=folder)
    (warning,) = path_warnings(config, folder)
    assert warning.startswith(f"state.path: the folder {folder}/new does not exist")
    assert warning.endswith("— make it, writable for the user that runs Weir")


def test_missing_absolute_folder_is_a_warning_at_the_start(folder: Path) -> None:
    config = parse_config(MINIMAL + f"state: {{path: {folder}/new/kept.json}}\n", source="weir.yaml", directory=folder)
    assert list(path_warnings(config, folder)) == []
    (warning,) = path_warnings(config, folder, starts=True)
    assert warning.startswith(f"state.path: the folder {folder}/new does not exist")


def test_ledger_that_cannot_be_made_is_a_warning_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    config = parse_config(MINIMAL + f"ledger: {{path: {folder}/new/ledger}}\n", source="weir.yaml", directory=folder)
    assert list(path_warnings(config, folder)) == []
    (warning,) = path_warnings(config, folder, starts=True)
    assert warning.startswith(f"ledger.path: the present user can't write to the folder {folder}")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("state: {path: folder/kept.json}", "state.path"),
        ("state: {usage_path: %s/folder/use.jsonl}", "state.usage_path"),
        ("ledger: {path: %s/folder}", "ledger.path"),
        ("ledger: {path: ./missing/ledger}", "ledger.path"),
    ],
)
def test_folder_of_another_user_is_a_warning(folder: Path, section: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    monkeypatch.chdir(folder)
    config = parse_config(MINIMAL + section.replace("%s", str(folder)) + "\n", source="weir.yaml", directory=folder)
    (warning,) = path_warnings(config, folder)
    assert warning.startswith(f"{key}: the present user can't write to the folder {folder}")


@pytest.mark.parametrize(
    ("section", "key"),
    [("state: {path: %s/sub/kept.json}", "state.path"), ("ledger: {path: %s/sub/ledger}", "ledger.path")],
)
@pytest.mark.parametrize("starts", [False, True])
def test_folder_below_a_closed_one_is_a_warning(closed_folder: Path, section: str, key: str, starts: bool) -> None:
    text = MINIMAL + section.replace("%s", str(closed_folder)) + "\n"
    config = parse_config(text, source="weir.yaml", directory=closed_folder.parent)
    (warning,) = path_warnings(config, closed_folder.parent, starts=starts)
    assert warning.startswith(f"{key}: the present user can't write to the folder {closed_folder}/sub")


@pytest.mark.parametrize(
    "section",
    [
        "quota_admins: ['User:root']",
        "quota_admins: ['User:root']\nstate: {usage_path: /var/lib/of-another-machine/use.jsonl}",
        "quotas: {entities: [{user: a, producer_byte_rate: 1000}]}",
        "quotas: {groups: [{name: g, match: [{user: a}], producer_byte_rate: 1000}]}",
        "quotas: {topics: {total.bytes.in.per.sec.threshold: 1000}}",
        "connections: {connection_creation_rate: 5}",
    ],
)
def test_folder_of_the_config_must_take_the_state(folder: Path, section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(MINIMAL + section + "\n", source="weir.yaml", directory=folder)
    assert list(path_warnings(config, folder)) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    (warning,) = path_warnings(config, folder)
    assert warning.startswith("state.path: is absent, so Weir saves its state beside the config file. ")
    assert f"can't write to the folder {folder} — give the path" in warning


@pytest.mark.parametrize(
    "section",
    [
        "",
        "quotas: {entities: [{user: a, producer_byte_rate: 1000}]}\nstate: {path: /var/lib/of-another-machine/kept.json}",
        "quotas: {entities: [{user: a, producer_byte_rate: 1000}]}\nstate: {usage_path: /var/lib/of-another-machine/use}",
    ],
)
def test_folder_of_the_config_may_stay_closed(folder: Path, section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weir saves nothing there."""
    config = parse_config(MINIMAL + section + "\n", source="weir.yaml", directory=folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert list(path_warnings(config, folder)) == []


def test_ledger_of_another_machine_has_no_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    config = parse_config(MINIMAL + "ledger: {path: /var/lib/of-another-machine}\n", source="weir.yaml", directory=folder)
    assert list(path_warnings(config, folder)) == []


@pytest.mark.parametrize("path", ["kept.json", "file", "folder/kept.json", "/var/lib/of-another-machine/kept.json"])
def test_possible_state_path_has_no_warning(folder: Path, path: str) -> None:
    config = parse_config(MINIMAL + f"state: {{path: {path}}}\n", source="weir.yaml", directory=folder)
    assert list(path_warnings(config, folder)) == []
