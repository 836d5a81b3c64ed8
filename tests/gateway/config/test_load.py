"""Config files that are missing, unreadable or not text."""

import gc
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.app import GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD, GC_THRESHOLD
from gateway.config.document import read_document
from gateway.config.load import MAX_CONFIG_BYTES, _of_document, load_config, parse_config
from gateway.config.problems import ConfigError
from tests.gateway.config.texts import MINIMAL, parsed


def test_file_with_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(path) == parsed(MINIMAL)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: \(file\): does not exist — write one with `weir init`.*--config"):
        load_config(tmp_path / "nowhere.yaml")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory — name the file in it"):
        load_config(tmp_path)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    path.write_bytes(b"a: b\nc: \xff\n")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(line 2\) — save it as UTF-8"):
        load_config(path)


def test_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)  # the parser would name the NUL characters
    with pytest.raises(ConfigError, match=r"has more than 32 MiB — name the config file with --config"):
        load_config(path)


def test_pipe_without_writer_is_refused(tmp_path: Path) -> None:
    """A read that waits for a writer would hang a start, and every later reload."""
    path = tmp_path / "weir.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is a pipe without a writer — name a regular file with --config"):
        load_config(path)


def test_pipe_with_writer_is_read(tmp_path: Path) -> None:
    """Bash's `<(command)` is such a file."""
    reader, writer = os.pipe()
    try:
        assert os.write(writer, MINIMAL.encode()) == len(MINIMAL)
        os.close(writer)
        assert load_config(Path(f"/dev/fd/{reader}")) == parsed(MINIMAL)
    finally:
        os.close(reader)


def test_pipe_with_silent_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.files.path_faults.SILENCE_SECONDS", 0.05)
    path = tmp_path / "weir.yaml"
    os.mkfifo(path)
    reason = "can't be read: it is no regular file, and gave nothing for 0.05 s — name a regular file"
    with path.open("r+b", buffering=0), pytest.raises(ConfigError, match=reason):
        load_config(path)


def test_device_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is no regular file, and has more than 32 MiB — name a regular file"):
        load_config(Path("/dev/zero"))


@pytest.mark.parametrize("key", ["password_file", "ca"])
def test_device_as_named_file_is_refused(tmp_path: Path, key: str) -> None:
    section = "tls: {ca: /dev/zero}" if key == "ca" else "sasl: {mechanism: PLAIN, username: weir, password_file: /dev/zero}"
    path = tmp_path / "weir.yaml"
    path.write_text(MINIMAL.replace("upstream: {", f"upstream: {{{section}, "))
    with pytest.raises(ConfigError, match=f"{key}: .*has more than 32 MiB .*— name a regular file"):
        load_config(path)


@pytest.mark.parametrize("key", ["password_file", "ca"])
def test_pipe_as_named_file_is_refused(tmp_path: Path, key: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    section = "tls: {ca: pipe}" if key == "ca" else "sasl: {mechanism: PLAIN, username: weir, password_file: pipe}"
    text = MINIMAL.replace("upstream: {", f"upstream: {{{section}, ")
    assert text != MINIMAL
    path = tmp_path / "weir.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{key}: .*(is empty|holds no certificate)"):
        load_config(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    path.write_text(MINIMAL)
    path.chmod(0)
    with pytest.raises(ConfigError, match="can't be read: Permission denied — make it readable for the user that runs Weir"):
        load_config(path)


def test_link_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weir.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="can't be read: Too many levels of symbolic links — remove the symbolic link"):
        load_config(path)


def test_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weir.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match="can't be read: Not a directory — give a path below a folder"):
        load_config(tmp_path / "weir.yaml" / "weir.yaml")


@pytest.mark.parametrize(
    "section",
    ["tls: {ca: loop}", "sasl: {mechanism: PLAIN, username: weir, password_file: loop}"],
)
def test_link_to_itself_has_its_remedy_in_each_key(tmp_path: Path, section: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / "weir.yaml"
    path.write_text(MINIMAL.replace("upstream: {", f"upstream: {{{section}, "))
    with pytest.raises(ConfigError, match=r"Too many levels of symbolic links.* — remove the symbolic link"):
        load_config(path)


def row_text(count: int) -> str:
    rows = "".join(f"    - {{user: user-{number}, producer_byte_rate: {number + 1}}}\n" for number in range(count))
    sections = "upstream: {bootstrap_servers: ['127.0.0.1:9092']}\nlisteners: [{bootstrap_port: 29092}]"
    return f"{sections}\nquotas:\n  entities:\n{rows}"


def test_rows_and_lines_are_freed_one_by_one() -> None:
    """A reload parses in a thread. To free thousands of objects in one step would keep the event loop waiting."""
    document = read_document(row_text(3), source="weir.yaml")
    assert (len(document.data["quotas"]["entities"]), len(document.lines) > 3) == (3, True)
    assert len(_of_document(document, "weir.yaml", None, ()).quotas.entities) == 3
    assert (document.data["quotas"]["entities"], document.lines) == ([], {})


def test_garbage_collections_of_a_reload_are_short() -> None:
    """A collection keeps the event loop waiting, and takes longer the more objects it looks at."""
    text, most, before = row_text(12_000), 0, gc.get_threshold()

    def count(phase: str, info: Mapping[str, int]) -> None:
        nonlocal most
        if phase == "start":
            most = max(most, sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.collect()
    gc.callbacks.append(count)
    gc.set_threshold(GC_THRESHOLD, GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD)
    try:
        parse_config(text, source="weir.yaml")
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*before)
    assert 0 < most < 3.5 * GC_THRESHOLD
