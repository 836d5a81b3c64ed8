"""The CPU time of a gateway's process."""

import os
from pathlib import Path

from tests.weir_process import Weir

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(weir: Weir) -> float:
    """User and system time that the process has used so far, in steps of 10 ms."""
    fields = Path(f"/proc/{weir.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
