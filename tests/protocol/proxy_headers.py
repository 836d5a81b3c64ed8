"""Builds headers of the PROXY protocol, also invalid ones."""

from ipaddress import IPv4Address, IPv6Address
from struct import pack

SIGNATURE = bytes.fromhex("0D0A0D0A000D0A515549540A")
LOCAL = SIGNATURE + b"\x20\0\0\0"
"""The header of a health check."""

IPV4, IPV6 = IPv4Address("192.0.2.7"), IPv6Address("2001:db8::7")
UNIX = b"/run/kafka.sock".ljust(108, b"\0") + bytes(108)


def line(text: str) -> bytes:
    return f"PROXY {text}\r\n".encode()


def binary(
    source: IPv4Address | IPv6Address,
    destination: IPv4Address | IPv6Address,
    port: int,
    destination_port: int,
    tlvs: bytes = b"",
    *,
    family: int | None = None,
) -> bytes:
    """A version 2 header; `family` has the transport in its lower half."""
    addresses = source.packed + destination.packed + pack(">HH", port, destination_port)
    family = (0x11 if source.version == 4 else 0x21) if family is None else family
    return SIGNATURE + pack(">BBH", 0x21, family, len(addresses) + len(tlvs)) + addresses + tlvs


def tlv(kind: int, value: bytes) -> bytes:
    return pack(">BH", kind, len(value)) + value
