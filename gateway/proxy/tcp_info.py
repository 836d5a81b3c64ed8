"""The kernel's figures of a TCP connection. They cost nothing until somebody reads them."""

import socket
import sys
from array import array
from fcntl import ioctl
from termios import FIONREAD
from typing import Final

_LINUX: Final = sys.platform == "linux"

# The offsets in Linux's `struct tcp_info`: eight bytes, 24 numbers of 32 bits, then numbers of 64 bits. For a listening
# socket, `tcp_get_info` in net/ipv4/tcp.c reports the queue in the number of unacknowledged segments.
_LEFT: Final = (b"\7", b"\10")  # TCP_CLOSE and TCP_CLOSE_WAIT; the first byte is the state
_UNACKED: Final = 8 + 4 * 4
_LAST_DATA_RECV: Final = 8 + 11 * 4
_BYTES_ACKED: Final = 8 + 24 * 4 + 2 * 8
_BYTES_RECEIVED: Final = _BYTES_ACKED + 8
_DATA_SEGMENTS_OUT: Final = _BYTES_RECEIVED + 8 + 5 * 4
_INFO_BYTES: Final = _DATA_SEGMENTS_OUT + 4


def unread_bytes(fd: int) -> int:
    """The peer's bytes that wait in the kernel."""
    size = array("i", [0])
    ioctl(fd, FIONREAD, size)
    return size[0]


def queued_connections(bound: socket.socket) -> int | None:
    """The connections that wait in the queue of a listening socket; None if unknown."""
    info = _read(bound)
    return _number(info, _UNACKED, 4) if info else None


def silence_seconds(connection: socket.socket) -> float:
    """Seconds since the kernel has received the peer's last bytes; 0.0 if unknown."""
    info = _read(connection)
    return _number(info, _LAST_DATA_RECV, 4) / 1000.0


def transferred_bytes(connection: socket.socket) -> tuple[int, int]:
    """The bytes that the peer has sent, and those that it has acknowledged, since the connection began. TLS counts as well."""
    info = _read(connection)
    return _number(info, _BYTES_RECEIVED, 8), _number(info, _BYTES_ACKED, 8)


def has_answered(connection: socket.socket) -> bool | None:
    """True if the peer has sent anything; False if it was sent data and has not. None if it was sent none, or if unknown."""
    info = _read(connection)
    if _number(info, _BYTES_RECEIVED, 8):
        return True
    return False if _number(info, _DATA_SEGMENTS_OUT, 4) else None


def peer_address(connection: socket.SocketType) -> tuple[str, int] | None:
    """The peer's IP address and port; None if the connection has ended."""
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None
    return host, port


def has_left(connection: socket.SocketType) -> bool:
    """True if the peer has closed its side or has reset the connection; False if unknown."""
    return _read(connection)[:1] in _LEFT


def _read(connection: socket.SocketType) -> bytes:
    if not _LINUX:
        return b""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # the connection has ended
        return b""


def _number(info: bytes, offset: int, size: int) -> int:
    """0 if the kernel is too old for the field."""
    return int.from_bytes(info[offset : offset + size], sys.byteorder) if len(info) >= offset + size else 0
