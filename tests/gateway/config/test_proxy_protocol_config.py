"""`listeners[].proxy_protocol`: values, problems and warnings."""

from ipaddress import ip_network

import pytest

from tests.gateway.config.texts import check_problem, entities, parsed

ROW = "{user: a, producer_byte_rate: 1048576}"


def config(section: str) -> str:
    return entities(ROW).replace("bootstrap_port: 29092", f"bootstrap_port: 29092, proxy_protocol: {section}")


def test_proxy_protocol_is_disabled_by_default() -> None:
    section = parsed(entities(ROW)).listeners[0].proxy_protocol
    assert (section.mode, section.trusted, section.header_seconds) == ("disabled", (), 5.0)


def test_every_key_is_read() -> None:
    found = parsed(config('{mode: allowed, trusted: [10.0.0.9, "2001:db8::/32"], header_seconds: 2.5}'))
    section = found.listeners[0].proxy_protocol
    assert (section.mode, section.header_seconds) == ("allowed", 2.5)
    assert section.trusted == (ip_network("10.0.0.9/32"), ip_network("2001:db8::/32"))
    assert parsed(found.model_dump_json()) == found


PROBLEMS = {
    "no mode of that name": ("{mode: on}", ".mode", ["disabled"]),
    "required without balancers": ("{mode: required}", "", ["mode: required and no trusted balancer", "trusted: [10.0.0.9"]),
    "allowed without balancers": ("{mode: allowed, trusted: []}", "", ["mode: allowed and no trusted balancer"]),
    "a name": ("{mode: required, trusted: [haproxy]}", ".trusted[0]", ['"haproxy"', "not an address", "10.0.0.9"]),
    "a number": ("{mode: required, trusted: [10]}", ".trusted[0]", ["value 10", "not an address", "10.0.0.9"]),
    "no list": ("{mode: required, trusted: 10.0.0.9}", ".trusted", ["list"]),
    "an address inside of a network": (
        "{mode: required, trusted: [10.0.0.9/8]}",
        ".trusted[0]",
        ["its last 24 bits are not zero", "10.0.0.0/8 for the whole network", "10.0.0.9 for this address"],
    ),
    "no time": ("{mode: required, trusted: [10.0.0.9], header_seconds: 0}", ".header_seconds", ["value 0"]),
    "a misspelt key": ("{mode: required, trust: [10.0.0.9]}", ".trust", ["trusted"]),
    "nothing": ("", "", ["is empty", "remove the key"]),
}


@pytest.mark.parametrize(("section", "key", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_problem_names_key_value_and_remedy(section: str, key: str, words: list[str]) -> None:
    check_problem(config(section), f"listeners[0].proxy_protocol{key}", *words)


WARNINGS = {
    "trusted in vain": ("{trusted: [10.0.0.9]}", "mode: is disabled"),
    "everybody": ("{mode: required, trusted: [10.0.0.9, 0.0.0.0/0]}", "trusted: 0.0.0.0/0 trusts every client"),
    "everybody by IPv6": ('{mode: allowed, trusted: ["::/0"]}', "trusted: ::/0 trusts every client"),
}


@pytest.mark.parametrize(("section", "words"), WARNINGS.values(), ids=WARNINGS)
def test_probable_mistake_is_a_warning(section: str, words: str) -> None:
    (warning,) = parsed(config(section)).warnings()
    assert warning.startswith(f"listeners[0].proxy_protocol.{words}")
