"""The header of the PROXY protocol, version 1 or 2: a balancer sends it first, to pass on the client's address.

Source: `proxy-protocol.txt` of HAProxy.
"""

from ipaddress import AddressValueError, IPv4Address, IPv6Address
from struct import Struct
from typing import Final, NamedTuple

MAX_HEADER_BYTES: Final = 4096
"""The maximum size of a header with its TLVs. Balancers send fewer than 1000 bytes; version 2 could announce 64 KiB."""

MAX_LINE_BYTES: Final = 107
"""The maximum size of a version 1 header, CRLF included."""

_LINE_START: Final = b"PROXY "
_LINE_END: Final = b"\r\n"
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED: Final = Struct(">BBH")  # version and command, family and transport, length of the rest
_FIXED_BYTES: Final = len(_SIGNATURE) + 4
_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
_UNSPEC, _INET, _INET6, _UNIX = 0, 1, 2, 3
_ADDRESS_BYTES: Final = {_UNSPEC: 0, _INET: 12, _INET6: 36, _UNIX: 216}
"""The size of both addresses and ports, by address family."""

_MAX_TRANSPORT: Final = 2
_MAX_PORT: Final = 65_535


class InvalidProxyHeader(Exception):
    """The bytes are no PROXY header. The message completes the sentence "the header ..."."""


class ProxyHeader(NamedTuple):
    """A complete header of `size` bytes. `source` is the client's address, in canonical form, and its port.

    Without a `source`, the balancer names no IP address, or speaks for itself (`local`, as in a health check).
    """

    size: int
    version: int
    local: bool
    source: tuple[str, int] | None


def begins_proxy_header(data: bytes) -> bool:
    """True if the first byte is that of a header. No TLS record and no Kafka request below 218 MB begins with such a byte."""
    return data[:1] in (_LINE_START[:1], _SIGNATURE[:1])


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`. None: more bytes are missing, and all of `data` belongs to the header.

    Raises `InvalidProxyHeader` as soon as no further bytes can make a header of `data`.
    """
    if data.startswith(_LINE_START):
        return _parse_line(data)
    if data.startswith(_SIGNATURE):
        return _parse_binary(data)
    if _LINE_START.startswith(data) or _SIGNATURE.startswith(data):
        return None
    raise InvalidProxyHeader(f"begins with {data[: len(_SIGNATURE)]!r}, the start of neither version 1 nor version 2")


def _parse_line(data: bytes) -> ProxyHeader | None:
    size = data.find(b"\n", 0, MAX_LINE_BYTES) + 1
    if size == 0:
        if len(data) >= MAX_LINE_BYTES:
            raise InvalidProxyHeader(f"of version 1 has no CRLF within {MAX_LINE_BYTES} bytes")
        return None
    if not data.endswith(_LINE_END, 0, size):
        raise InvalidProxyHeader("of version 1 ends with LF instead of CRLF")
    line = data[len(_LINE_START) : size - len(_LINE_END)].decode("ascii", "replace")
    family, *rest = line.split(" ")
    if family == "UNKNOWN":
        return ProxyHeader(size, 1, False, None)
    if family not in ("TCP4", "TCP6"):
        raise InvalidProxyHeader(f"of version 1 has the protocol {family!r}: it must be TCP4, TCP6 or UNKNOWN")
    if len(rest) != 4:
        raise InvalidProxyHeader(f"of version 1 must have two addresses and two ports: {line!r}")
    source, destination, source_port, destination_port = rest
    _address(family, destination)
    _port(destination_port)
    return ProxyHeader(size, 1, False, (_address(family, source), _port(source_port)))


def _parse_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED_BYTES:
        return None
    version_and_command, family_and_transport, length = _FIXED.unpack_from(data, len(_SIGNATURE))
    version, command = version_and_command >> 4, version_and_command & 15
    family, transport = family_and_transport >> 4, family_and_transport & 15
    if version != _VERSION:
        raise InvalidProxyHeader(f"has the signature of version 2 and the version {version}")
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader(f"of version 2 has the unknown command {command}")
    size = _FIXED_BYTES + length
    if size > MAX_HEADER_BYTES:
        raise InvalidProxyHeader(f"of version 2 announces {size} bytes, and Weir reads at most {MAX_HEADER_BYTES}")
    if command == _PROXY:
        if family not in _ADDRESS_BYTES or transport > _MAX_TRANSPORT:
            raise InvalidProxyHeader(f"of version 2 has the unknown address family {family} or transport {transport}")
        if length < _ADDRESS_BYTES[family]:
            raise InvalidProxyHeader(
                f"of version 2 has {length} bytes, and the addresses of family {family} take {_ADDRESS_BYTES[family]}"
            )
    if len(data) < size:
        return None
    source: tuple[str, int] | None = None
    if command == _PROXY and transport != _UNSPEC and family in (_INET, _INET6):
        at = _FIXED_BYTES
        if family == _INET:
            source = str(IPv4Address(data[at : at + 4])), int.from_bytes(data[at + 8 : at + 10], "big")
        else:
            source = _canonical(IPv6Address(data[at : at + 16])), int.from_bytes(data[at + 32 : at + 34], "big")
    return ProxyHeader(size, _VERSION, command == _LOCAL, source)


def _address(family: str, text: str) -> str:
    try:
        if family == "TCP4":
            return str(IPv4Address(text))
        if "%" not in text:  # a zone, which only means something on the balancer
            return _canonical(IPv6Address(text))
    except AddressValueError:
        pass
    raise InvalidProxyHeader(f"of version 1 has the protocol {family} and the address {text!r}")


def _canonical(address: IPv6Address) -> str:
    """A mapped IPv4 address becomes one of IPv4: balancers with listeners for both families send such addresses."""
    return str(address.ipv4_mapped or address)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and text == str(int(text)) and int(text) <= _MAX_PORT:
        return int(text)
    raise InvalidProxyHeader(f"of version 1 has the port {text!r}: it must be a number from 0 to {_MAX_PORT}")
