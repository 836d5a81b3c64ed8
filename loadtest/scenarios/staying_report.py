"""Measures `weir report --every`: hours arrive one after the other, and one process reads each of them."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.scenarios.process_costs import Cost, family, peak_mib

_EVERY = "2s"
_END = re.compile(r" *[0-9.]+ s  .* hours? read, .* in total")
"""The line at the end of a run."""


@dataclass(frozen=True)
class StayingReport:
    """A `command` of `weir report` without `--events` and `--every`, and the ledger that it reads."""

    command: Sequence[str]
    ledger: Path

    def costs(self, hours: Sequence[Path]) -> Iterator[Cost]:
        """The cost of the run for each hour. An hour is a ledger of its own, and moves to `ledger` when no run is under way.

        The first run has Java's start. Raises `RuntimeError` if the process ends.
        """
        left = list(hours)
        self._move(left.pop(0))
        command = [*self.command, "--events", str(self.ledger), "--every", _EVERY]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            before, total, lines = 0.0, 0.0, []
            for line in process.stderr or ():
                lines.append(line.rstrip())
                if _END.fullmatch(lines[-1]):
                    total = 0.0 if " 0 hours read" in line else float(line.split()[0])
                elif "the next run begins" in line:
                    costs = family(process.pid)
                    cpu = sum(seconds for seconds, _ in costs.values())
                    if total:
                        yield Cost(total, cpu - before, peak_mib(costs), lines)
                        if not left:
                            process.terminate()
                            return
                        self._move(left.pop(0))
                    before, lines = cpu, []
            raise RuntimeError("\n".join(["weir report ended:", *lines]))

    def _move(self, hour: Path) -> None:
        """Move the files of an hour, which appear all at once."""
        (folder,) = hour.glob("date=*/hour=*")
        target = self.ledger / folder.relative_to(hour)
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
