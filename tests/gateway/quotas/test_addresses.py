"""One spelling for each address of a client."""

from ipaddress import ip_address, ip_network

import pytest

from gateway.quotas.addresses import address_of, network_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("::10.0.0.1", "::a00:1"),
        ("0:0::1", "::1"),
    ],
)
def test_mapped_address_is_one_of_ipv4(text: str, address: str) -> None:
    assert address_of(text) == ip_address(address)


@pytest.mark.parametrize(
    ("text", "network", "is_first"),
    [
        ("10.0.0.1", "10.0.0.1/32", True),
        ("10.0.0.1/8", "10.0.0.0/8", False),
        ("::ffff:10.0.0.1", "10.0.0.1/32", True),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8", True),
        ("::ffff:10.0.0.1/104", "10.0.0.0/8", False),
        ("::ffff:0:0/96", "0.0.0.0/0", True),
        ("::/0", "::/0", True),
        ("2001:db8::/32", "2001:db8::/32", True),
        ("fe80::1%eth0", "fe80::1%eth0/128", True),
    ],
)
def test_mapped_network_is_one_of_ipv4(text: str, network: str, is_first: bool) -> None:
    assert network_of(text) == (ip_network(network), is_first)


@pytest.mark.parametrize("text", ["", "host", "10.0.0.1.2", "::ffff:10.0.0.0/129"])
def test_other_text_is_no_address(text: str) -> None:
    for read in (address_of, network_of):
        with pytest.raises(ValueError, match="does not appear to be"):
            read(text)
