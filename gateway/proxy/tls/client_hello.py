"""Looks at the key shares of a ClientHello (RFC 8446, sections 4.1.2 and 4.2.8) before OpenSSL computes with one.

OpenSSL before 3.5 takes finite-field groups of up to 8192 bits (RFC 7919). Its answer for such a share takes 125 ms, and all
clients wait. The sender computes nothing: any bytes will do, and the same ones each time (the attack D(HE)at).
"""

import ssl
from typing import Final

from protocol.cursor import Buffer, Reader
from protocol.errors import Incomplete, InvalidFrame

LARGE_GROUPS: Final = {0x0101: "ffdhe3072", 0x0102: "ffdhe4096", 0x0103: "ffdhe6144", 0x0104: "ffdhe8192"}
"""Finite-field groups above 2048 bits, whose shares take OpenSSL 8 to 125 ms. A share of ffdhe2048 takes 3 ms, as of P-384."""

MAX_HELLO_BYTES: Final = 64 * 1024
"""The longest ClientHello. OpenSSL takes 128 KiB. Its largest part is a ticket with the client's certificate."""

ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x28"
"""The fatal alert `handshake_failure` as a record."""

_HANDSHAKE: Final = 22  # the type of a record
_CLIENT_HELLO: Final = 1  # the type of a message
_KEY_SHARE: Final = 51  # the type of an extension
_RECORD_HEADER: Final = 5
_MESSAGE_HEADER: Final = 4
_VERSION_AND_RANDOM: Final = 34


class RefusedHelloError(ssl.SSLError):
    """A ClientHello that OpenSSL is not to see."""

    reason = "REFUSED_HELLO"  # only OpenSSL's own errors have one


class LargeKeyShareError(RefusedHelloError):
    """A client's key share is of a group that takes too long."""


class ClientHellos:
    """Follows the beginning of a peer's handshake, in any chunking. OpenSSL gets the same bytes afterwards.

    A client sends a ClientHello, and after a HelloRetryRequest a second one. OpenSSL takes no other message of a client before
    them, but warnings and records that count for nothing. So records of other types are skipped, and nothing behind the first
    other message is read.
    """

    __slots__ = ("_done", "_messages", "_records")

    def __init__(self) -> None:
        self._records = bytearray()  # the last one, as long as it is incomplete
        self._messages = bytearray()
        self._done = False

    def check(self, received: Buffer, outgoing: ssl.MemoryBIO) -> None:
        """Raise `RefusedHelloError` for a ClientHello that is too long, or has a large group. `outgoing` gets the alert."""
        if self._done or not received:
            return
        self._records += received
        self._take_records()
        while len(self._messages) >= _MESSAGE_HEADER and not self._done:
            end = _MESSAGE_HEADER + int.from_bytes(self._messages[1:_MESSAGE_HEADER], "big")
            if self._messages[0] != _CLIENT_HELLO:
                self._done = True
                self._records = self._messages = bytearray()
            elif end > MAX_HELLO_BYTES:
                outgoing.write(ALERT)
                raise RefusedHelloError(1, f"its ClientHello has {end} bytes, more than {MAX_HELLO_BYTES}")
            elif len(self._messages) < end:
                return
            else:
                group = _large_group(self._messages[_MESSAGE_HEADER:end])
                del self._messages[:end]
                if group is not None:
                    outgoing.write(ALERT)
                    raise LargeKeyShareError(1, f"a key share of {LARGE_GROUPS[group]}")

    def _take_records(self) -> None:
        records, begin = self._records, 0
        while len(records) - begin >= _RECORD_HEADER:
            content = begin + _RECORD_HEADER
            end = content + int.from_bytes(records[begin + 3 : content], "big")
            if len(records) < end:
                break
            if records[begin] == _HANDSHAKE:
                self._messages += records[content:end]
            begin = end
        del records[:begin]


def _large_group(hello: Buffer) -> int | None:
    """The first group of `LARGE_GROUPS` among the key shares. None as well for a ClientHello that OpenSSL cannot read."""
    reader = Reader(hello, 0, len(hello), len(hello))
    try:
        reader.skip(_VERSION_AND_RANDOM)
        reader.skip(reader.byte())  # session id
        reader.skip(_length(reader))  # ciphers
        reader.skip(reader.byte())  # compression methods
        reader.skip(2)  # length of the extensions
        while reader.pos < reader.end:
            kind, size = _length(reader), _length(reader)
            after = reader.pos + size
            if kind == _KEY_SHARE:
                reader.skip(2)  # length of the shares
                while reader.pos < after:
                    group = _length(reader)
                    if group in LARGE_GROUPS:
                        return group
                    reader.skip(_length(reader))
            reader.skip(after - reader.pos)
    except (Incomplete, InvalidFrame):
        pass
    return None


def _length(reader: Reader) -> int:
    """An unsigned number of 16 bits."""
    return reader.byte() << 8 | reader.byte()
