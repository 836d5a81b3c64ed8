"""A balancer in front of the gateways: the PROXY headers that it sends, and wrong ones that a gateway must refuse.

Source: `proxy-protocol.txt` of HAProxy.
"""

import struct
from ipaddress import ip_address
from typing import Final

NETWORK: Final = "10.2.0.0/16"
"""The addresses of the simulated clients' machines. In a run with a balancer, these are the balancer's."""

HEADER_SECONDS: Final = 1

GOOD: Final = ("v1", "v2", "v2-long")
WRONG: Final = ("none", "half", "unknown-protocol", "wrong-length")

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_VERSION_AND_PROXY: Final = 0x21
_STREAM: Final = {4: 0x11, 6: 0x21}
_UNIQUE_ID: Final = 5
_ID_BYTES: Final = 100


def source_of(client: int) -> str:
    """The address that the balancer names for a client. Some clients have IPv6."""
    return f"2001:db8::{client + 1:x}" if client % 3 == 2 else f"192.0.2.{client + 1}"


def header(kind: str, source: str, port: int) -> bytes:
    """A header of the kind. `half` has a part of its bytes, `none` has none."""
    match kind:
        case "v1":
            return _line(f"TCP{ip_address(source).version}", source, port)
        case "unknown-protocol":
            return _line("TCP9", source, port)
        case "v2":
            return _binary(source, port, b"")
        case "v2-long":
            return _binary(source, port, struct.pack(">BH", _UNIQUE_ID, _ID_BYTES) + bytes(_ID_BYTES))
        case "half":
            whole = _binary(source, port, b"")
            return whole[: len(whole) // 2]
        case "wrong-length":
            return _SIGNATURE + struct.pack(">BBH", _VERSION_AND_PROXY, _STREAM[4], 3) + bytes(3)
        case _:
            return b""


def _line(protocol: str, source: str, port: int) -> bytes:
    return f"PROXY {protocol} {source} {_own(source)} {port} 9092\r\n".encode()


def _binary(source: str, port: int, more: bytes) -> bytes:
    ends = ip_address(source).packed + ip_address(_own(source)).packed + struct.pack(">HH", port, 9092) + more
    family = _STREAM[ip_address(source).version]
    return _SIGNATURE + struct.pack(">BBH", _VERSION_AND_PROXY, family, len(ends)) + ends


def _own(source: str) -> str:
    """The balancer's own address, of the same family."""
    return "2001:db8:1::1" if ":" in source else "198.51.100.1"
