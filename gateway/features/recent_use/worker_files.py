"""The files of recent use after a change of `workers`: each process begins with the newest save of the processes before."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.features.recent_use.usage_file import saved_at
from gateway.files.flock import lock_file
from gateway.files.path_faults import write_remedy
from gateway.files.whole_file import real_path, replace_file

_log = logging.getLogger("weir.state")


async def give_newest_save(single: Path, files: Sequence[Path]) -> None:
    """Give the newest save to each of `files` that is missing, damaged, or of an earlier time with the present `workers`.

    Files of other numbers of workers are deleted, so that none of them is restored later. Call it before a process reads a
    file. `single` is the file of a gateway without workers. Errors are logged.
    """
    try:
        await asyncio.to_thread(_copy_newest, single, files)
    except OSError as error:
        _log.warning(
            "recent use of another number of workers can't be taken over, so clients may start with a full burst: %s — %s",
            error.strerror or error, write_remedy(error, single),
        )  # fmt: skip


def _copy_newest(single: Path, files: Sequence[Path]) -> None:
    others = [path for path in _usage_files(single) if path not in files]
    saves = {path: at for path in (*files, *others) if (at := saved_at(path)) is not None}
    if saves:
        newest = max(saves, key=saves.__getitem__)
        without = [path for path in files if path not in saves or (newest in others and saves[path] < saves[newest])]
        for path in without:
            # With sharing, each file has the use of all workers. The lines are ASCII, unless they are damaged.
            with newest.open(encoding="utf-8", errors="replace") as lines:
                replace_file(path, lines, durable=False)
        if without:
            _log.info("recent use of another worker is taken over", extra={"file": str(newest), "processes": len(without)})
    for path in others:
        real_path(path).unlink(missing_ok=True)  # a link stays, for a later save


def _usage_files(single: Path) -> Iterator[Path]:
    """The existing files of a gateway, by any number of workers. Yields nothing if the folder is missing or can't be listed."""
    try:
        found = list(single.parent.iterdir())
    except OSError:
        return
    for path in found:
        stem, _, worker = path.stem.rpartition(".")
        numbered = stem == single.stem and path.suffix == single.suffix and worker.isdecimal()
        # A file with a lock beside it is that of another gateway, whatever its name is: workers' files have none.
        if path == single or (numbered and not lock_file(path).exists()):
            yield path
