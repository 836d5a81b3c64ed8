"""Every key of the config file is described in the model, in plain English and with its unit."""

import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gateway.config.keys import SECTIONS
from tests.docs.test_reference import KEYS, ROOT

WITHOUT_UNIT = {"bootstrap_port", "port", "admin_port", "broker_id", "error_code", "weight"}
"""Numbers that name something."""

SCRIPT = ROOT / ".ci" / "check-language"
loader = importlib.machinery.SourceFileLoader("check_language_of_keys", str(SCRIPT))
spec = importlib.util.spec_from_loader("check_language_of_keys", loader)
assert spec
check_language = importlib.util.module_from_spec(spec)
loader.exec_module(check_language)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_key_is_described_in_plain_english(key: Any, tmp_path: Path) -> None:
    assert key.description[:1].isupper() or key.description.startswith("`")
    assert key.description.endswith(".")
    (tmp_path / "key.md").write_text(f"{key.description}\n\n{key.default}\n")
    assert list(check_language.hits(tmp_path / "key.md")) == []


@pytest.mark.parametrize("key", [key for key in KEYS if "number" in key.kind], ids=lambda key: key.path)
def test_number_has_a_unit(key: Any) -> None:
    name = key.path.rpartition(".")[2]
    assert bool(key.unit) != (name in WITHOUT_UNIT)
    if name.endswith("_ms"):
        assert key.unit == "milliseconds"
    elif name.endswith(("_seconds", "_days", "_bytes")):
        assert key.unit == name.rpartition("_")[2]


def test_keys_show_type_range_and_default() -> None:
    keys = {key.path: key for key in KEYS}

    def shown(path: str) -> tuple[str, str, str]:
        return keys[path].kind, keys[path].range, keys[path].default

    assert shown("workers") == ("whole number", "1 to 256", "`1`")
    assert shown("quotas.algorithm") == ("choice", "`token_bucket`, `window`", "`token_bucket`")
    assert shown("listeners[].tls.min_version") == ("choice", "`1.2`, `1.3`", "`1.2`")
    assert shown("listeners[].broker_ports")[2] == "the 100 ports after `bootstrap_port`; none with `sni`"
    assert shown("upstream.bootstrap_servers") == ("list of text", "not empty", "required")
    assert shown("notify.targets[]") == ("list of sections", "1 to 100 rows", "required")
    assert shown("quotas.topics.bytes.in.per.sec.threshold")[0] == "whole number by name"
    assert shown("quotas.entities[].exempt")[0] == "true or false, or list of names"


def test_each_section_has_a_key() -> None:
    assert len(SECTIONS) == len({key.path for key in KEYS if key.section is not None}) + 1
