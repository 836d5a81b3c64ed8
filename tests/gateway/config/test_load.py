"""Config files that are missing, unreadable or not text."""

import os
from pathlib import Path

import pytest

from gateway.config.load import MAX_CONFIG_BYTES, load_config
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
