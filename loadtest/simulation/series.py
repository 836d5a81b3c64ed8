"""Runs many seeds in child processes. A file of progress lets a series of hours go on after a stop.

Each child runs one batch, and ends without freeing its memory: collecting the garbage of runs would cost a tenth of the time.
"""

import gc
import json
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from loadtest.simulation.plan import Plan
from loadtest.simulation.run import Run
from loadtest.simulation.shrink import shrink
from loadtest.simulation.styles import plan_of
from loadtest.testkit.paths import CHECKOUT

BATCH = 40
"""Seeds of one child, which needs some 200 MiB at its end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`plan` is the text of the shrunk plan."""

    seed: int
    rule: str
    text: str
    plan: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of the seeds from `first` on."""

    first: int
    seeds: int
    requests: int
    cpu_seconds: float
    failures: tuple[Failure, ...] = ()


class Series:
    """`workers` is the number of children that run at a time. `done` has each batch that has ended."""

    def __init__(self, seeds: range, workers: int, progress: Path | None = None, *, shrinks: bool = True) -> None:
        self._workers = workers
        self._progress = progress
        self._shrinks = shrinks
        self._commit = commit()
        self.done = [] if progress is None else list(_done(progress, self._commit))
        known = {seed for batch in self.done for seed in range(batch.first, batch.first + batch.seeds)}
        self._left = list(_batches([seed for seed in seeds if seed not in known]))

    def run(self, seconds: float) -> None:
        """Begin no batch after so many seconds. Raises ChildProcessError if a child ends without a result.

        An exception of a signal handler ends the children, and loses their batches.
        """
        until = time.monotonic() + seconds
        Run(plan_of(0)).execute()  # fills the caches that all children inherit
        gc.collect()
        gc.freeze()
        running: dict[Connection, ForkProcess] = {}
        try:
            while True:
                while self._left and len(running) < self._workers and time.monotonic() < until:
                    receiver, process = self._begin(self._left.pop(0))
                    running[receiver] = process
                if not running:
                    return
                ready = wait(list(running))
                for receiver in [each for each in running if each in ready]:
                    with receiver:
                        self._ended(receiver, running.pop(receiver))
        finally:
            for process in running.values():
                process.terminate()
                process.join()
            gc.unfreeze()

    def _begin(self, seeds: range) -> tuple[Connection, ForkProcess]:
        context = get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_batch, args=(seeds, sender, self._shrinks), name=f"{seeds[0]} to {seeds[-1]}")
        process.start()
        sender.close()
        return receiver, process

    def _ended(self, receiver: Connection, process: ForkProcess) -> None:
        try:
            batch: Batch = receiver.recv()
        except EOFError:
            process.join()
            raise ChildProcessError(f"the child with the seeds {process.name} has ended ({process.exitcode})") from None
        process.join()
        if self._progress is not None:
            with self._progress.open("a") as file:
                file.write(json.dumps({"commit": self._commit, **asdict(batch)}) + "\n")
        self.done.append(batch)


def _run_batch(seeds: range, sender: Connection, shrinks: bool) -> None:
    gc.disable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends its children
    requests, failures = 0, []
    for seed in seeds:
        plan = plan_of(seed)
        try:
            outcome = Run(plan).execute()
            requests += outcome.requests
            if not outcome.violations:
                continue
            rule, text = outcome.violations[0].rule, str(outcome.violations[0])
            smaller = plan_text(shrink(plan) if shrinks else plan)
        except Exception:
            rule, text, smaller = "simulation fails", traceback.format_exc(), plan_text(plan)
        failures.append(Failure(seed, rule, text, smaller))
        replay = f"  replay it: python -m loadtest.simulation --seed {seed}"
        print(f"seed {seed} fails at {text}\n{smaller}\n{replay}", flush=True)
    sender.send(Batch(seeds[0], len(seeds), requests, round(time.process_time(), 3), tuple(failures)))


def plan_text(plan: Plan) -> str:
    """The plan in lines, one for each client and fault."""
    lines = []
    for each in fields(plan):
        value = getattr(plan, each.name)
        if isinstance(value, tuple):
            lines += [f"  {each.name}:", *(f"    {row}" for row in value)]
        else:
            lines.append(f"  {each.name}: {value}")
    return "\n".join(lines)


def commit() -> str:
    """The checkout's commit, with `-dirty` if files differ from it. "unknown" outside of a clone."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _done(progress: Path, of_commit: str) -> Iterator[Batch]:
    progress.touch()
    for line in progress.read_text().splitlines():
        row = json.loads(line)
        if row.pop("commit") == of_commit:
            row["failures"] = tuple(Failure(**each) for each in row["failures"])
            yield Batch(**row)


def _batches(seeds: Sequence[int]) -> Iterator[range]:
    """Ranges of at most `BATCH` seeds that follow each other."""
    start = 0
    for end in range(1, len(seeds) + 1):
        if end == len(seeds) or end - start == BATCH or seeds[end] != seeds[end - 1] + 1:
            yield range(seeds[start], seeds[end - 1] + 1)
            start = end
