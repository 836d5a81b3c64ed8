"""The CPU seconds, the memory and the time of commands, child processes included."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Cost:
    """The cost of a command and its child processes: wall-clock `seconds`, `cpu_seconds`, and peak memory (MiB)."""

    seconds: float
    cpu_seconds: float
    peak_mib: int
    said: Sequence[str]


def measured(command: Sequence[str]) -> Cost:
    """Run a command and sample its processes twice a second. Raises `CalledProcessError`."""
    began = time.monotonic()
    cpu: dict[int, float] = {}
    peak = 0
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.5):
            seen = family(process.pid)
            cpu.update({pid: seconds for pid, (seconds, _) in seen.items()})
            peak = max(peak, sum(size for _, size in seen.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, said = process.communicate()
    seconds = time.monotonic() - began
    ended.set()
    watcher.join()
    if process.returncode:
        print(out, said, file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Cost(seconds, sum(cpu.values()), peak >> 20, [line for line in said.splitlines() if " s  " in line])


def family(ancestor: int) -> Mapping[int, tuple[float, int]]:
    """CPU seconds and resident bytes of a process and its descendants."""
    parents: dict[int, int] = {}
    stats: dict[int, tuple[float, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            values = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        pid = int(entry.name)
        parents[pid] = int(values[1])
        stats[pid] = ((int(values[11]) + int(values[12])) / _TICK, int(values[21]) * _PAGE)
    family = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: stats[pid] for pid in family if pid in stats}


def peak_mib(pids: Iterable[int]) -> int:
    """The sum of the most resident memory that each process has had."""
    states = (Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return sum(int(found[1]) for state in states if (found := re.search(r"VmHWM:\s+(\d+) kB", state))) >> 10
