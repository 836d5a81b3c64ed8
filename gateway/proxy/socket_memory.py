"""The memory that the sockets of one event loop take: for a read, and for bytes that wait for slow peers.

A peer that does not read what it has asked for costs up to 500 KiB. Thousands of such peers would take gigabytes. So once the
bytes of all slow peers take `MAX_UNSENT_BYTES`, each further peer gets little. Reads are small then, and the next one waits
until the kernel has taken all bytes. A peer that reads notices nothing but smaller pieces.
"""

from collections.abc import Iterable
from typing import Final

from gateway.proxy.wire import Data

READ_BYTES: Final = 64 * 1024
"""The most bytes of one read, whose memory the kernel fills without a copy."""

BUFFER_BYTES: Final = 250 * 1024
"""The most bytes of a read after one that was full. They are copied. From 256 KiB on, glibc would map memory for each copy."""

CROWDED_READ_BYTES: Final = 16 * 1024
"""The most bytes of any read while slow peers have their whole budget."""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""The memory of bytes that wait for slow peers, of clients and brokers, before others wait for the kernel."""

MAX_BUFFER_PARTS: Final = 8
"""A view of less than this part of its buffer is copied if it has to wait. It would keep the whole buffer in memory."""


class SocketMemory:
    """`unsent_bytes` is the memory of bytes that wait. `crowded` is true while slow peers have their whole budget."""

    __slots__ = ("crowded", "unsent_bytes")

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.crowded = False

    def keep(self, data: Data) -> Data:
        """Count the memory of bytes that have to wait. Returns them, or a copy if they are a small part of a buffer."""
        if isinstance(data, memoryview) and len(data) * (1 if self.crowded else MAX_BUFFER_PARTS) < _memory_of(data):
            data = bytes(data)
        self._change(_memory_of(data))
        return data

    def release(self, pieces: Iterable[Data]) -> None:
        """Those that `keep` has returned, or their rests, are sent or dropped."""
        self._change(-sum(map(_memory_of, pieces)))

    def _change(self, amount: int) -> None:
        """Takes effect with the next read, and with the next bytes that have to wait."""
        self.unsent_bytes += amount
        self.crowded = self.unsent_bytes > MAX_UNSENT_BYTES


def _memory_of(data: Data) -> int:
    """The bytes of the buffer that `data` keeps in memory. Several views of one buffer count several times."""
    return memoryview(data.obj).nbytes if isinstance(data, memoryview) else len(data)
