"""`workers: N`: a process without traffic of its own that keeps N gateways with shared ports running."""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Self

import gateway
from gateway import clock, open_files, service_manager
from gateway.admin.metrics.row import families
from gateway.background import BackgroundTasks
from gateway.binding import BindError, bind_bootstrap_port
from gateway.config.effective import EffectiveConfig, ReloadResult
from gateway.config.model import WeirConfig
from gateway.config.reload import Reloader
from gateway.drain import GRACE_SECONDS, Stopping
from gateway.features.notify.feature import Notify
from gateway.features.notify.metrics import METRICS as NOTIFY_METRICS
from gateway.features.recent_use.worker_files import give_newest_save
from gateway.observer import Outlet
from gateway.overdue import EndWithin, no_deadline
from gateway.state_locks import StateLocks
from gateway.version import weir_build
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import LOOK_SECONDS, SupervisedWorker
from gateway.workers.worker import CUT, Worker, gateway_name

OK, CANNOT_KEEP, CANNOT_BIND = 0, 1, 3

CUT_SECONDS = 5.0
"""A worker's time after a second signal: it closes its connections at once, but still writes its ledger and state."""

_log = logging.getLogger("weir.workers")


async def supervise(path: Path, config: WeirConfig, options: Sequence[str] = (), end_within: EndWithin = no_deadline) -> int:
    """Run `config.workers` gateways until SIGTERM or SIGINT. Returns the exit code. `path` is the config file.

    `options` are further options of `weir serve`, passed on to the workers.
    """
    open_files.raise_limit()
    stopping = Stopping(end_within)
    for number in (signal.SIGTERM, signal.SIGINT):  # before the start: the default action would leave the directory behind
        asyncio.get_running_loop().add_signal_handler(number, stopping.request)
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(PrivateDirectory())
        except OSError as error:
            _log.error("no directory for the workers: %s — free space there, or name another folder in TMPDIR", error)
            return CANNOT_KEEP
        return await Supervisor(path, config, directory, options, stopping).run()


class Supervisor:
    """Starts the workers, replaces those that die, and ends them: at the first signal by a drain, at the second at once."""

    def __init__(
        self, path: Path, config: WeirConfig, directory: "PrivateDirectory", options: Sequence[str], stopping: Stopping
    ) -> None:
        self._path = path
        self._effective = EffectiveConfig(config, clock.wall(), Outlet(), path.name)
        self._directory = directory
        self._common = Worker(0, directory.path, directory.claims)
        self._locks = StateLocks(config.state, path, config.workers)
        self._unkept = False
        processes = count(1)
        workers = [Worker(number, directory.path, directory.claims) for number in range(config.workers)]
        self._workers = [
            SupervisedWorker(
                worker.number,
                _command(path, worker, options),
                worker.admin_socket,
                lambda: next(processes),
                self._prepare,
                (directory.claims, directory.descriptor),
            )
            for worker in workers
        ]
        places = self._effective.places
        self._reloader = Reloader(path, config, lambda *_: [], self._reloaded, self._hangup, places.prepare)
        self._restarts: Counter[str] = Counter()
        self._admin = WorkersServer(
            self._workers,
            (config.admin.host, config.admin.port),
            self.not_ready,
            self._restarts,
            self._effective,
            lambda: families(NOTIFY_METRICS, self._notify.report()),
        )
        self._notify = Notify(config.notify, gateway_name(config.ledger, None), self._admin.active_rows, places, path.parent)
        self._stopping = stopping
        self._exit_code = OK

    async def run(self) -> int:
        """Run until a signal, or until a worker can't be started for the first time; returns the exit code.

        Raises ConfigError if another gateway uses the state file.
        """
        await self._locks.take()
        try:
            self._prepare()
        except OSError as error:
            _log.error(
                "%s can't be written: %s — free space there, or name another folder in TMPDIR", self._directory.name, error
            )
            return CANNOT_KEEP
        try:
            await self._admin.start()
            for listener in self._config.listeners:
                # With SO_REUSEPORT, workers could share a port with those of another Weir, so bind it without the option first.
                bind_bootstrap_port(listener, reuse_port=False).close()
        except BindError as error:
            _log.error("%s", error)
            await self._admin.stop()
            return CANNOT_BIND
        state = self._config.state
        await give_newest_save(state.usage_file(self._path), state.usage_files(self._path, len(self._workers)))
        admin = f"{self._config.admin.host}:{self._config.admin.port}"
        _log.info("%d workers", len(self._workers), extra={"admin": admin, "build": weir_build()})
        async with BackgroundTasks(self._restarts) as tasks, asyncio.TaskGroup() as group:
            tasks.start("reload the config", self._reloader.run)
            tasks.start("watch the workers' directory", self._watch_directory)
            self._notify.start(tasks)
            running = group.create_task(self._run_workers(), name="run the workers")
            await self._stopping.requested.wait()
            await self._drain(running)
            await self._notify.stop()
        await self._admin.stop()
        self._locks.release()
        return self._exit_code

    @property
    def _config(self) -> WeirConfig:
        """The config in effect."""
        return self._effective.config

    def not_ready(self) -> str | None:
        """The reason if balancers should send no clients here. At the start all workers must be ready, later one is enough."""
        if self._stopping.requested.is_set():
            return "draining"
        reasons = {worker.number: worker.not_ready for worker in self._workers if worker.not_ready is not None}
        if len(reasons) < len(self._workers) and all(worker.was_ready for worker in self._workers):
            return None
        return "; ".join(f"worker {number}: {reason}" for number, reason in reasons.items()) or None

    async def _run_workers(self) -> None:
        """Start the first worker alone, so that an error that stops all workers is logged once; then start the others."""
        first, *others = self._workers
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_worker(first))
            await first.started.wait()
            if not self._stopping.requested.is_set():
                service_manager.ready()
            for worker in others if not self._stopping.requested.is_set() else ():
                group.create_task(self._run_worker(worker))

    async def _run_worker(self, worker: SupervisedWorker) -> None:
        code = await worker.run()
        worker.started.set()
        if code:
            self._exit_code = code
            self._stopping.requested.set()

    async def _watch_directory(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._directory.intact:
                self._prepare()

    def _prepare(self) -> None:
        """Make what is missing of the directory, before a worker starts. Raises OSError. Running workers need none of it."""
        self._make_directory()
        if not self._common.config_file.exists():
            self._common.keep(self._config, self._effective.history)

    def _make_directory(self) -> None:
        """Make the directory again if somebody has removed it. Raises OSError."""
        if not self._directory.intact:
            removed = self._directory.name
            self._directory.make_again()
            _log.warning(
                "%s was removed, so workers start with %s — keep it, or name another folder in TMPDIR",
                removed, self._directory.name,
            )  # fmt: skip

    async def _drain(self, running: asyncio.Task[None]) -> None:
        seconds = self._config.connections.drain_delay_seconds + self._config.connections.drain_seconds
        service_manager.stopping(seconds + GRACE_SECONDS + CUT_SECONDS)
        self._stopping.end_within(seconds + GRACE_SECONDS + CUT_SECONDS)
        for worker in self._workers:
            worker.stop()
        at_once = asyncio.ensure_future(self._stopping.at_once.wait())
        await asyncio.wait([running, at_once], timeout=seconds + GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if at_once.done():
            _log.warning("received a second signal to end: workers close their connections")
            for worker in self._workers:
                worker.send(CUT)
            await asyncio.wait([running], timeout=CUT_SECONDS)
        elif not running.done():
            _log.error("some workers have not ended %g s after their time to drain; the supervisor kills them", GRACE_SECONDS)
        at_once.cancel()
        for worker in self._workers:
            worker.send(signal.SIGKILL)
        self._stopping.end_within(CUT_SECONDS)

    def _hangup(self) -> None:
        if self._unkept:
            self._keep_new()
        for worker in self._workers:
            worker.reload()

    def _reloaded(self, result: ReloadResult) -> None:
        """A replacement starts with the config in effect, even if the file has been refused since."""
        self._effective.record(result)
        if result.success:
            self._notify.apply(result.config.notify)
            self._keep_new()

    def _keep_new(self) -> None:
        try:
            self._make_directory()
            self._common.keep(self._config, self._effective.history)
        except OSError as error:
            self._unkept = True
            _log.error(
                "the config in effect can't be saved, so a replaced worker begins with the config before: %s: %s"
                " — free space there, then send SIGHUP", self._directory.name, error.strerror,
            )  # fmt: skip
        else:
            self._unkept = False


def _command(path: Path, worker: Worker, options: Sequence[str]) -> list[str]:
    # -P: do not import a package `gateway` of the working directory, unless this process did.
    here = [] if Path(gateway.__file__).parents[1] == Path.cwd() else ["-P"]
    own = ["--worker", str(worker.number), "--worker-directory", str(worker.directory), "--worker-claims", str(worker.claims)]
    return [sys.executable, *here, "-m", "gateway", "serve", "--config", str(path), *own, *options]


class PrivateDirectory:
    """A directory that only this user may enter. A context manager, which removes it in the end. Raises OSError.

    `path` leads to it by `descriptor`, here and in processes that inherit the descriptor. Another user may take the `name` of a
    removed directory. `claims` is the descriptor of the file in which workers claim brokers' ports. That file has no name, so
    that nobody can remove it.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open until `__exit__`)
        self.claims = self._file.fileno()
        try:
            self.name, self.descriptor = _new_directory()
        except OSError:
            self._file.close()
            raise
        self.path = Path(f"/proc/self/fd/{self.descriptor}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.intact:
            shutil.rmtree(self.name, ignore_errors=True)
        os.close(self.descriptor)
        self._file.close()

    @property
    def intact(self) -> bool:
        """False after somebody has removed the directory, even if another one has the name now."""
        try:
            return os.path.samestat(self.name.lstat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def make_again(self) -> None:
        """Make a directory with another name. The path and the number of the descriptor stay. Raises OSError."""
        self.name, made = _new_directory()
        os.dup2(made, self.descriptor, inheritable=False)
        os.close(made)


def _new_directory() -> tuple[Path, int]:
    name = Path(tempfile.mkdtemp(prefix="weir-workers-"))
    with ExitStack() as undo:
        undo.callback(name.rmdir)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # systemd-tmpfiles keeps locked directories, however old they are
        undo.pop_all()
    return name, descriptor
