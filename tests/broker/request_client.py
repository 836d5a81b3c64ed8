"""Requests, or versions of them, that no client library sends, over one connection."""

import socket
import struct
from types import TracebackType
from typing import Any, Self

from tests.protocol import codec

TIMEOUT_S = 60.0


class RequestClient:
    """A context manager: one connection with sequential requests."""

    def __init__(self, bootstrap_servers: str, client_id: str = "raw") -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._stream = self._socket.makefile("rb")
        self._client_id = client_id
        self._correlation_id = 0

    def ask(self, api_key: int, version: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the response as nested dicts. Raises OSError if the connection is closed instead."""
        self._correlation_id += 1
        self._socket.sendall(codec.encode_request(api_key, version, values, self._correlation_id, self._client_id))
        prefix = self._stream.read(4)
        if len(prefix) < 4:
            raise ConnectionError("closed instead of answered")
        answer = codec.decode_response(api_key, version, prefix + self._stream.read(struct.unpack(">i", prefix)[0]))
        assert answer["correlation_id"] == self._correlation_id
        return answer

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
