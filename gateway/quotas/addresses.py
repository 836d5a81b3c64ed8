"""IP addresses and networks of clients in one spelling.

`::ffff:10.0.0.1` is the IPv4 address 10.0.0.1, as in Java's `InetAddress.getByName`. Weir's IPv6 sockets take no IPv4
connections, so no client has such an address.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network

_MAPPED: Final = IPv6Network("::ffff:0:0/96")


def address_of(text: str) -> IPv4Address | IPv6Address:
    """Raises ValueError if the text is not an address."""
    address = ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def network_of(text: str) -> tuple[Network, bool]:
    """The network of an address or of an address with a prefix, and True if the address is its first.

    Raises ValueError if the text is neither.
    """
    network = ip_network(text, strict=False)
    first = ip_address(text.partition("/")[0]) == network.network_address
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        address = network.network_address.ipv4_mapped
        network = IPv4Network((str(address), network.prefixlen - _MAPPED.prefixlen))
    return network, first
