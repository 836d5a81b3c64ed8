"""Locks of the state files: of several gateways with one file, only the first may start."""

import asyncio
import os
from pathlib import Path

from gateway import clock
from gateway.config.problems import ConfigError, Problem
from gateway.features.quota_api.config import StateConfig
from gateway.files.flock import HELD_MESSAGE, FileLock, lock_file
from gateway.whole_number import whole_number

WAIT_SECONDS = 1.0
"""Time to wait for the lock of a gateway that is just ending, for example after a kill."""

_AGAIN_SECONDS = 0.05


class StateLocks:
    """The locks of one gateway, or of the supervisor in the place of its workers."""

    def __init__(self, config: StateConfig, config_file: Path, workers: int = 1) -> None:
        self.quotas = FileLock("state.path", config.file(config_file))
        self._usage = FileLock("state.usage_path", config.usage_file(config_file))
        self._usage_files = config.usage_files(config_file, workers)
        self._config_file = config_file

    async def take(self) -> None:
        """Take both. Raises ConfigError if another process keeps one of them for `WAIT_SECONDS`.

        It raises the same if a file of recent use is one gateway's own file and the file of another one's worker.
        """
        if (problem := self._shared_name()) is not None:
            raise ConfigError(str(self._config_file), [problem])
        deadline = clock.monotonic() + WAIT_SECONDS
        for lock in (self.quotas, self._usage):
            while not await asyncio.to_thread(_try, lock):  # a hung disk must not stop the event loop
                if clock.monotonic() >= deadline:
                    problem = Problem(lock.key, HELD_MESSAGE, lock.remedy, value=str(lock.path))
                    raise ConfigError(str(self._config_file), [problem])
                await asyncio.sleep(_AGAIN_SECONDS)
        self._usage.write(str(len(self._usage_files)))

    def release(self) -> None:
        self.quotas.release()
        self._usage.release()

    def _shared_name(self) -> Problem | None:
        """Files of workers have no lock beside them: their supervisor has the lock of the name without a number.

        The text of that lock is the number of workers.
        """
        own = self._usage.path
        remedy = "give each gateway a state.usage_path of its own that does not end with a number"
        for path in self._usage_files:
            # A folder that the present user may not open counts as empty: nothing can be saved there.
            if path != own and os.access(lock_file(path), os.F_OK):
                message = (
                    f"gives a worker the file {path}, and {lock_file(path).name} says that a gateway without workers has it"
                )
                return Problem(self._usage.key, message, f"{remedy}, or remove a lock that is left over", value=str(own))
        stem, _, worker = own.stem.rpartition(".")
        single = own.with_stem(stem or own.stem)
        number, workers = whole_number(worker), _workers_of(single)
        if single != own and workers > 1 and number is not None and number < workers:
            return Problem(self._usage.key, f"is the file of a worker of the gateway with {single}", remedy, value=str(own))
        return None


def _workers_of(path: Path) -> int:
    """The number of processes of the gateway that last had this file; 0 if there is none, or an earlier version."""
    try:
        return whole_number(lock_file(path).read_text().strip()) or 0
    except (OSError, ValueError):
        return 0


def _try(lock: FileLock) -> bool:
    try:
        return lock.take()
    except OSError:  # no save works there; a later save that works takes the lock first
        return True
