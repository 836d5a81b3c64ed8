"""A part of a processor for each process, by Linux's cgroups: as on a machine that has nothing else to do, only slower.

On a busy machine a process gets what the others leave, and two get more than one whatever they are. With a part that is always
there each worker has a processor of its own, if a small one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERIOD_US = 20_000
_V1 = Path("/sys/fs/cgroup/cpu")
_SHARES = 16
"""How much more than another process it counts, up to its part: so that the part is there."""


@contextmanager
def part_of_a_processor(pid: int, part: float) -> Iterator[None]:
    """Give a process `part` of a processor, no more, and no less even where others want it. Raises OSError; needs root.

    Where cgroups are of version 2, it is only the bound that is set.
    """
    group = (_V1 if _V1.is_dir() else Path("/sys/fs/cgroup")) / f"weir-loadtest-{os.getpid()}-{pid}"
    group.mkdir()
    quota = round(_PERIOD_US * part)
    try:
        if _V1.is_dir():
            (group / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota}")
            (group / "cpu.shares").write_text(f"{1024 * _SHARES}")
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(line)
        group.rmdir()
