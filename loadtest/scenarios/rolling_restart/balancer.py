"""A TCP balancer like a Kubernetes Service: it routes new connections to ready gateways, and keeps open connections."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.2
"""The interval of /readyz checks. A gateway that is no longer ready gets new clients for up to this time."""

_CHUNK_BYTES = 1 << 16
_ANSWER_SECONDS = 1.0


@dataclass(slots=True)
class Backend:
    """One gateway: the bind address of its listener, and its admin port on the balancer's host."""

    host: str
    admin_port: int
    ready: bool = False
    accepted: int = 0
    refused: int = 0
    """Connections that the gateway did not accept. Their clients see an immediate disconnect."""


class Balancer:
    """A context manager that listens on all `ports` of `host` in its own thread. A connection keeps its port number."""

    def __init__(self, host: str, ports: Sequence[int], backends: Sequence[Backend]) -> None:
        self.backends = backends
        self._host = host
        self._ports = ports
        self._turn = count()
        self._serving: set[asyncio.Task[None] | None] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        servers = [await asyncio.start_server(self._serve, self._host, port) for port in self._ports]
        looking = [asyncio.create_task(self._look(backend)) for backend in self.backends]
        self._started.set()
        await self._stopped.wait()
        for task in looking:
            task.cancel()
        for server in servers:
            server.close()

    async def _look(self, backend: Backend) -> None:
        while True:
            backend.ready = await self._says_yes(backend)
            await asyncio.sleep(LOOK_SECONDS)

    async def _says_yes(self, backend: Backend) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(self._host, backend.admin_port)
                try:
                    writer.write(b"GET /readyz HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
                    return b" 200 " in await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. Like a Service, it tries only one gateway."""
        task = asyncio.current_task()
        # After the client's last byte, nothing else holds a strong reference to the task, and Python would collect it.
        self._serving.add(task)
        try:
            await self._relay(reader, writer)
        finally:
            self._serving.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [backend for backend in self.backends if backend.ready]
        with (
            closing(writer),
            suppress(asyncio.CancelledError),
        ):  # asyncio.run cancels the task at the end, and streams would log it
            if ready:
                backend = ready[next(self._turn) % len(ready)]
                try:
                    there, back = await asyncio.open_connection(backend.host, writer.get_extra_info("sockname")[1])
                except OSError:
                    backend.refused += 1
                    return
                backend.accepted += 1
                with closing(back):
                    await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes and end-of-file in one direction. The other direction may stay open."""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()
