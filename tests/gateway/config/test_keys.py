"""The sections of the config file, and one source that says how a change of a key takes effect."""

import pytest

from gateway.config.keys import SECTIONS, changes_by, restart_keys, section_in
from gateway.config.model import ListenerConfig, WeirConfig


def test_sections_are_found_in_the_model() -> None:
    assert SECTIONS[()] is WeirConfig
    assert SECTIONS[("listeners",)] is ListenerConfig
    assert "producer_byte_rate" in SECTIONS[("quotas", "entities")].model_fields
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
