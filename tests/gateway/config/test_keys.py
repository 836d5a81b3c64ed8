"""Every key of the config file is described in the model, and one source says how its change takes effect."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from gateway.config.keys import SECTIONS, ConfigKey, all_keys, changes_by, restart_keys, section_in
from gateway.config.model import ListenerConfig, WeirConfig

KEYS = list(all_keys())

WITHOUT_UNIT = {"bootstrap_port", "port", "admin_port", "broker_id", "error_code", "weight"}
"""Numbers that name something."""

SCRIPT = Path(__file__).parents[3] / ".ci" / "check-language"
loader = importlib.machinery.SourceFileLoader("check_language_of_keys", str(SCRIPT))
spec = importlib.util.spec_from_loader("check_language_of_keys", loader)
assert spec
check_language = importlib.util.module_from_spec(spec)
loader.exec_module(check_language)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_key_is_described_in_plain_english(key: ConfigKey, tmp_path: Path) -> None:
    assert key.description[:1].isupper() or key.description.startswith("`")
    assert key.description.endswith(".")
    (tmp_path / "key.md").write_text(f"{key.description}\n\n{key.default}\n")
    assert list(check_language.hits(tmp_path / "key.md")) == []


@pytest.mark.parametrize("key", [key for key in KEYS if "number" in key.kind], ids=lambda key: key.path)
def test_number_has_a_unit(key: ConfigKey) -> None:
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
    assert shown("quotas.topics.bytes.in.per.sec.threshold")[0] == "whole number by name"
    assert shown("quotas.entities[].exempt")[0] == "true or false, or list of names"


def test_sections_are_found_in_the_model() -> None:
    assert SECTIONS[()] is WeirConfig
    assert SECTIONS[("listeners",)] is ListenerConfig
    assert "producer_byte_rate" in SECTIONS[("quotas", "entities")].model_fields
    assert len(SECTIONS) == len({key.path for key in KEYS if key.section is not None}) + 1
    assert section_in(dict[str, ListenerConfig]) is None


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        (("listeners", 0, "tls", "cert"), "restart"),
        (("listeners", 3, "max_connections"), "reload"),
        (("connections", "max_per_ip_overrides", "10.0.0.1"), "reload"),
        (("upstream", "bootstrap_servers", 0), "restart"),
        (("ledger", "path"), "restart"),
        (("ledger", "max_bytes"), "reload"),
        (("quotas", "volumes", "agent", "paths", 0), "agent"),
        (("admin", "allowed_hosts", 1), "reload"),
    ],
)
def test_key_takes_the_change_of_its_section(path: tuple[str | int, ...], changes: str) -> None:
    assert changes_by(path) == changes


def test_restart_keys_are_as_short_as_possible() -> None:
    assert {"upstream", "listeners (except max_connections and connection_creation_rate)", "ledger.path"} <= set(restart_keys())
    assert not any(key.startswith(("quotas", "connections")) for key in restart_keys())
