"""An asyncio event loop in virtual time. Nothing waits: if no callback is ready, the clock jumps to the next timer.

Every callback belongs to a simulated process, by its context. The loop drops the callbacks of a killed process.
"""

import asyncio
import heapq
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Protocol, TypeVar

BEGIN = 1_000.0
"""The monotonic clock at the start of a run (seconds)."""

THREAD_SECONDS = 0.003
"""The time after which the result of a thread's work arrives."""

_T = TypeVar("_T")


class DeadlockError(Exception):
    """No callback is ready, and no timer is set."""


class Process:
    """One simulated process. `wall_offset` is the error of its wall clock, in seconds."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.wall_offset = 0.0
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        self.config_changed = asyncio.Event()
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function as this process: callbacks and tasks that it creates belong to the process."""
        return self.context.run(function, *args)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class ConnectionMaker(Protocol):
    """The network."""

    async def connect(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...

    def adopt(
        self, protocol_factory: Callable[[], asyncio.Protocol], connection: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None: ...

    def remove_reader(self, fd: int) -> bool: ...


class VirtualHandle:
    """A callback that is ready or waits for its time: an `asyncio.TimerHandle` without what this loop does not need."""

    __slots__ = ("args", "callback", "context", "due")

    def __init__(
        self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context | None, due: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.due = due

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


class VirtualTask(asyncio.Task[Any]):
    """A task with a hash that does not depend on its address: asyncio iterates over sets of tasks."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], loop: "VirtualLoop", **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """`network` makes connections; it is set before the first one."""

    network: ConnectionMaker

    def __init__(self) -> None:
        super().__init__()
        self._now = BEGIN
        self._numbers = count()
        self._timers: list[tuple[float, int, VirtualHandle]] = []
        self.turns = 0
        self.tasks: list[VirtualTask] = []
        self.revives_dead = False
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> VirtualTask:
        assert loop is self
        task = VirtualTask(next(self._numbers), coroutine, self, **options)
        # A killed process leaves tasks that are not done. Their frames must not be collected during the run.
        self.tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        handle = VirtualHandle(callback, args, context, self._now)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """Timers of one moment go off in the order of these calls, as uvloop's do."""
        handle = VirtualHandle(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _run_once(self) -> None:
        ready: deque[VirtualHandle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        self.turns += 1
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise DeadlockError
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            process = handle.context.get(PROCESS)
            if process is None or process.alive or self.revives_dead:
                try:
                    handle.context.run(callback, *handle.args)
                except Exception as error:
                    self.call_exception_handler({"message": f"Exception in {callback}", "exception": error})

    def _write_to_self(self) -> None:
        """No other thread has to wake this loop."""

    def end(self) -> None:
        """Let every task that is left run its `finally` blocks, so that none of them is destroyed while it is pending."""
        self.revives_dead = True
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(3):
            left = [task for task in self.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                try:
                    self.run_until_complete(asyncio.wait(left, timeout=1.0))
                except DeadlockError:
                    break
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.exception()  # it counts as seen
            asyncio._unregister_task(task)
        self.tasks.clear()
        self.close()

    # The rest of the interface that gateways use.

    def run_in_executor(self, _: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        future: asyncio.Future[_T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(THREAD_SECONDS, _settle, future, None, error)
        else:
            self.call_later(THREAD_SECONDS, _settle, future, result, None)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        process = PROCESS.get()
        assert process is not None
        process.signal_handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        process = PROCESS.get()
        return process is not None and process.signal_handlers.pop(sig, None) is not None

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Names are the addresses of this network."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        return self.network.adopt(protocol_factory, sock)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self.network.add_reader(fd, lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        return self.network.remove_reader(fd)


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def run_in(loop: VirtualLoop, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in this loop."""
    events.set_event_loop(None)
    return loop.run_until_complete(coroutine)


WORLD = Context()
"""The context of the network itself, which no kill can stop."""
