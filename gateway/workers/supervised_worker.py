"""One worker as its supervisor sees it: its process, and the replacement if the process dies."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp

from gateway import clock, service_manager
from gateway.background import Backoff
from gateway.open_files import OWN_ERRORS, remedy

LOOK_SECONDS = 1.0
LOOK_WHILE_NOT_READY_SECONDS = 0.1
HUNG_SECONDS = 60.0
"""A worker that is silent for so long is killed and replaced, because the kernel goes on giving it new connections."""

START_SECONDS = 120.0
"""Maximum time to a worker's first answer. A large config or file of recent use makes a start slow."""

ASK_SECONDS = 5.0

SILENT_SECONDS = 2 * ASK_SECONDS
"""A worker that is silent for so long is not ready. If only one look gets no answer, the machine may be busy."""

_NO_PROCESS = 1
"""The exit code of a worker that the system can't start."""

_log = logging.getLogger("weir.workers")


class WorkerUnreachableError(Exception):
    """A worker's admin server does not answer, or not with the page."""

    @property
    def is_own(self) -> bool:
        """True if the supervisor could not ask: it has no file descriptor or memory left."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in OWN_ERRORS


class SupervisedWorker:
    """Keeps one process running. `process` is its number among all processes of all workers, 0 while none runs.

    `not_ready` is the reason if the process should get no clients, otherwise None. `was_ready`: a process of this worker has
    been ready.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        socket: Path,
        next_process: Callable[[], int],
        prepare: Callable[[], None] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """`prepare` runs before each start. It raises OSError if no process can be started.

        `inherited` are the descriptors that each process gets.
        """
        self.number = number
        self.process = 0
        self.pid = 0
        self.restarts = 0
        self.started_at = 0.0
        self.not_ready: str | None = "starting"
        self.was_ready = False
        self.started = asyncio.Event()
        """Set when the first process has bound its ports and answers."""
        self._command = command
        self._socket = socket
        self._next_process = next_process
        self._prepare = prepare
        self._inherited = inherited
        self._running: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._answered_at: float | None = None
        self._kept_socket: int | None = None
        self._backoff = Backoff()

    async def run(self) -> int:
        """Start, watch and replace the process until `stop`. Returns an exit code if the first process could not start."""
        while not self._stopping.is_set():
            try:
                code = await self._run_once()
                how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
            except OSError as error:  # no memory, process or file descriptor is left, or `prepare` failed
                code, how = _NO_PROCESS, f"can't be started: {error}"
                if error.errno in OWN_ERRORS:
                    how += f" — {remedy(error)}"
                if not self.started.is_set():  # a process would have said why it ends
                    _log.error("worker %d %s", self.number, how, extra={"worker": self.number})
            if self._stopping.is_set():
                break
            if not self.started.is_set() and code > 0:
                return code
            self.restarts += 1
            wait = self._backoff.seconds(0.0 if self._answered_at is None else clock.monotonic() - self._answered_at)
            then = f"another is started in {wait:g} s" if wait else "another is started"
            _log.error("worker %d %s; %s", self.number, how, then, extra={"worker": self.number, "pid": self.pid})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
        return 0

    def stop(self) -> None:
        """Send SIGTERM: the process drains, and is not replaced."""
        self._stopping.set()
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        if self._running is not None and self._running.returncode is None:
            with suppress(ProcessLookupError):
                self._running.send_signal(number)

    def reload(self) -> None:
        """Send SIGHUP. A process that has not answered yet reads the config anyway."""
        if self.has_answered:
            self.send(signal.SIGHUP)

    async def ask(self, path: str, body: bytes | None = None) -> bytes:
        """The worker's answer to a GET, or to a POST of a JSON `body`. Raises WorkerUnreachableError, also for an error."""
        status, answer = await self._ask(path, body)
        if status != HTTPStatus.OK:
            raise WorkerUnreachableError(f"worker {self.number} answers {status} to {path}")
        return answer

    @property
    def has_answered(self) -> bool:
        """True if the process that runs now has answered. One that starts has no clients yet."""
        return self._answered_at is not None

    async def _run_once(self) -> int:
        self._answered_at = None  # the last process's life does not shorten the pause after a failed start
        if self._prepare is not None:
            self._prepare()
        self._socket.unlink(missing_ok=True)
        if self._kept_socket is not None:  # the last process's
            os.close(self._kept_socket)
            self._kept_socket = None
        # In a session of its own, Ctrl-C does not reach the worker. Its standard input closes when the supervisor ends.
        self._running = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._inherited,
            env=service_manager.environment_of_children(),
        )
        self.process, self.pid, self.started_at = self._next_process(), process.pid, clock.wall()
        if self._stopping.is_set():
            self.send(signal.SIGTERM)
        watch = asyncio.get_running_loop().create_task(self._watch(), name=f"watch worker {self.number}")
        try:
            return await process.wait()
        finally:
            watch.cancel()
            self.process, self.not_ready = 0, "starting"

    async def _watch(self) -> None:
        """Poll `/readyz`, and kill a silent process."""
        silent, looked = 0.0, clock.monotonic()
        while True:
            try:
                status, body = await self._ask("/readyz")
            except WorkerUnreachableError as error:
                seconds = HUNG_SECONDS if self.has_answered else START_SECONDS
                # If more time has passed, the supervisor stood still, and the worker may have, too.
                silent += min(clock.monotonic() - looked, ASK_SECONDS + LOOK_SECONDS)
                if error.is_own:
                    silent = 0.0  # the worker may be well
                if self.has_answered and silent > SILENT_SECONDS:
                    self.not_ready = "does not answer"
                if silent > seconds:
                    text = "worker %d has not answered for %g s and is killed"
                    _log.error(text, self.number, seconds, extra={"worker": self.number, "pid": self.pid})
                    self.send(signal.SIGKILL)
                    return
            else:
                silent = 0.0
                self._answered_at = self._answered_at or clock.monotonic()
                self.not_ready = None if status == 200 else body.decode(errors="replace").strip()
                self.was_ready = self.was_ready or self.not_ready is None
                self.started.set()
            looked = clock.monotonic()
            await asyncio.sleep(LOOK_SECONDS if self.not_ready is None else LOOK_WHILE_NOT_READY_SECONDS)

    async def _ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(self._socket_path(), force_close=True),
                    timeout=aiohttp.ClientTimeout(total=ASK_SECONDS),
                ) as session,
                session.request(
                    "GET" if body is None else "POST",
                    f"http://worker{path}",
                    data=body,
                    headers={"Accept": "*/*"} if body is None else {"Content-Type": "application/json"},
                ) as response,
            ):
                return response.status, await response.read()
        except Exception as error:  # also errors of unexpected answers: the watch must go on
            raise WorkerUnreachableError(f"worker {self.number}: {error!r}") from error

    def _socket_path(self) -> str:
        """A path that leads to the socket. Raises OSError if the process has not made the socket yet.

        Cleaners of temporary files delete sockets. Through its descriptor, the socket stays reachable, and no other one is.
        """
        if self._kept_socket is None:
            self._kept_socket = os.open(self._socket, os.O_PATH)
        return f"/proc/self/fd/{self._kept_socket}"
