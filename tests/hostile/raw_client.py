"""A client that sends arbitrary bytes, whole or in part, and reads frames. No client library does."""

import contextlib
import socket
import struct
import time
from types import TracebackType
from typing import Self

_LENGTH = struct.Struct(">i")


class RawClient:
    """A context manager: one blocking TCP connection to `bootstrap_servers` ("host:port"), `source` is its own address."""

    def __init__(
        self, bootstrap_servers: str, *, timeout: float = 20.0, receive_buffer: int | None = None, source: str = ""
    ) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, *frames: bytes) -> None:
        """Send all `frames` in one write."""
        self.socket.sendall(b"".join(frames))

    def receive(self, timeout: float | None = None) -> bytes:
        """The next whole frame, its length included. Raises TimeoutError, or EOFError once the gateway has closed."""
        self._fill(_LENGTH.size, timeout)
        return self._take(_LENGTH.size + _LENGTH.unpack_from(self._buffer)[0], timeout)

    def ask(self, frame: bytes, timeout: float | None = None) -> tuple[bytes, float]:
        """Send a request and return its response with the seconds that it took."""
        since = time.monotonic()
        self.send(frame)
        return self.receive(timeout), time.monotonic() - since

    def receives_nothing(self, seconds: float) -> bool:
        """Return True if the gateway neither sends nor closes within `seconds`."""
        try:
            self.receive(seconds)
        except TimeoutError:
            return True
        except EOFError:
            pass
        return False

    def is_closed(self, timeout: float | None = None) -> bool:
        """Return True if the gateway closes the connection within `timeout`. Earlier responses are dropped."""
        try:
            while True:
                self.receive(timeout)
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _take(self, count: int, timeout: float | None) -> bytes:
        self._fill(count, timeout)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _fill(self, count: int, timeout: float | None) -> None:
        before = self.socket.gettimeout()
        if timeout is not None:
            self.socket.settimeout(timeout)
        try:
            while len(self._buffer) < count:
                data = self.socket.recv(1 << 20)
                if not data:
                    raise EOFError("the gateway closed the connection")
                self._buffer += data
        finally:
            self.socket.settimeout(before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()
