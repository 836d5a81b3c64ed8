"""Limits each process to a part of a CPU with Linux cgroups, as on an idle but slower machine.

On a busy machine, a process gets the CPU time that others leave, so two processes always get more than one. With fixed
parts, each worker has its own small CPU.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERIOD_US = 20_000
_V1 = Path("/sys/fs/cgroup/cpu")
_SHARES = 16
"""The weight relative to other processes. It guarantees the part on a busy machine."""


@contextmanager
def part_of_a_processor(pid: int, part: float) -> Iterator[None]:
    """Give a process exactly `part` of a CPU, even if other processes compete. Raises `OSError`; needs root.

    With cgroups v2, it only sets the upper limit.
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
