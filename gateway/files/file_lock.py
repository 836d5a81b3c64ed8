"""Locks of the state files: of several gateways with one file, only the first may start."""

import asyncio
import logging
import os
from pathlib import Path

from gateway import clock
from gateway.config.problems import ConfigError, Problem
from gateway.features.quota_api.config import StateConfig
from gateway.files.flock import locked
from gateway.files.whole_file import real_path

WAIT_SECONDS = 1.0
"""Time to wait for the lock of a gateway that is just ending, for example after a kill."""

_AGAIN_SECONDS = 0.05

_log = logging.getLogger("weir.state")


class FileLock:
    """The right to write the file at `path`, as a lock (flock) on a file `NAME.lock` beside it.

    The file itself can't be locked, because each save replaces it. The kernel frees the lock when the process ends. `key` is
    the config key that names the file.
    """

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock, unless it is taken already. False if another process has it.

        Raises OSError if the lock's file can't be made. Then no gateway can save there either.
        """
        if self._descriptor is not None:
            return True
        file = real_path(self.path)
        self._descriptor = locked(file.with_name(f"{file.name}.lock"), self._warn)
        return self._descriptor is not None

    def _warn(self, error: OSError) -> None:
        _log.warning("%s: %s can't be locked: %s — let only one gateway use it", self.key, self.path, error.strerror)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def problem(self) -> Problem:
        return Problem(
            self.key,
            "another gateway uses the file, and each would overwrite the other's saved changes",
            f"stop the other gateway, or give each gateway a {self.key} of its own",
            value=str(self.path),
        )


class StateLocks:
    """The locks of one gateway, or of the supervisor in the place of its workers."""

    def __init__(self, config: StateConfig, config_file: Path) -> None:
        self.quotas = FileLock("state.path", config.file(config_file))
        self._usage = FileLock("state.usage_path", config.usage_file(config_file))
        self._config_file = config_file

    async def take(self) -> None:
        """Take both. Raises ConfigError if another process keeps one of them for `WAIT_SECONDS`."""
        deadline = clock.monotonic() + WAIT_SECONDS
        for lock in (self.quotas, self._usage):
            while not await asyncio.to_thread(_try, lock):  # a hung disk must not stop the event loop
                if clock.monotonic() >= deadline:
                    raise ConfigError(str(self._config_file), [lock.problem])
                await asyncio.sleep(_AGAIN_SECONDS)

    def release(self) -> None:
        self.quotas.release()
        self._usage.release()


def _try(lock: FileLock) -> bool:
    try:
        return lock.take()
    except OSError:  # no save works there; a later save that works takes the lock first
        return True
