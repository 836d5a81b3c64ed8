"""Latency that proxies add, in an open loop at shares of one processor: rounds, and the arithmetic of their figures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from loadtest.bench.crowd import visit_once
from loadtest.bench.estimate import Estimate, Floats, Rounds, over_rounds
from loadtest.bench.generator import pin
from loadtest.bench.open_loop import DisturbedError, OpenLoop, OpenSample
from loadtest.bench.proxies import Way
from loadtest.bench.rounds import PRODUCE_TOPIC, in_turns, started
from loadtest.testkit.kafka import free_port, spawn

SHARES = (0.2, 0.5, 0.8)
"""Loads, as the share of one processor that the dearest proxy takes."""

LATENCY_WAYS = ("direct", "weir", "weir-watched", "weir-crowded", "haproxy")
LATENCY_SIZE = 100
BASE, QUIET = "haproxy", "weir"
WATCHED = ("weir-watched", "weir-crowded")
FIELDS = ("p50", "p99", "p999")

_CALIBRATION_RATE = 4_000.0
_CALIBRATION_STEPS = 4
_MAX_STEP = 3.0
_PATIENCE_SECONDS = 120.0
_TRIES = 5
_RESAMPLES = 2_000


@dataclass(frozen=True)
class Level:
    """A load: a share of one processor, and the requests per second that cause it."""

    share: float
    rate: float


OpenSamples = dict[str, list[OpenSample]]
"""The samples of each way. The n-th sample belongs to the n-th round."""

Finished = subprocess.CompletedProcess[str]


def values(samples: OpenSamples, way: str, field: str) -> Floats:
    return np.array([getattr(sample, field) for sample in samples[way]])


def added(samples: OpenSamples, way: str, field: str) -> Floats:
    """The microseconds above the direct connection of the same round."""
    return values(samples, way, field) - values(samples, "direct", field)


def ratio(numerator: Floats, denominator: Floats) -> Estimate:
    """The ratio of two medians over the same rounds."""

    def of(rounds: Rounds) -> float:
        return float(np.median(numerator[rounds]) / np.median(denominator[rounds]))

    return over_rounds(len(numerator), of, _RESAMPLES)


def prefer(pid: int) -> None:
    """Let no other process delay this one, if this process may decide that. Its main thread comes before its other threads."""
    with suppress(PermissionError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            priority = 2 if task.name == str(pid) else 1
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(priority))


class Laboratory:
    """Runs the load on one processor and the proxies on the other. Raises `RuntimeError` on a machine with one processor."""

    def __init__(self) -> None:
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            raise RuntimeError("--latency needs two processors: one for the proxies, one for the load")
        self._proxies, self._load = processors[:2]
        self.port = free_port()

    def pin(self, way: Way) -> None:
        for pid in way.pids:
            pin(pid, {self._proxies})

    def sample(self, way: Way, rate: float, seconds: float, seed: int) -> OpenSample:
        """Raises `RuntimeError` with the load's message."""
        for pid in way.pids:
            prefer(pid)  # threads that began since then have the priority of the thread that started them
        job = OpenLoop(
            way.address,
            self.port,
            PRODUCE_TOPIC,
            LATENCY_SIZE,
            rate,
            seconds=seconds,
            seed=seed,
            pids=way.pids,
            visits=way.visits,
        )
        command = [sys.executable, "-m", "loadtest.bench.open_loop", json.dumps(asdict(job)), str(self._load)]

        def run() -> Finished:
            process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            output, errors = process.communicate(timeout=_PATIENCE_SECONDS)
            return Finished(process.args, process.returncode, output, errors)

        return first_undisturbed(run)


def first_undisturbed(run: Callable[[], Finished]) -> OpenSample:
    """Return the first usable sample. Raises `DisturbedError`, or `RuntimeError` if the load fails."""
    for _ in range(_TRIES):
        finished = run()
        if finished.returncode != os.EX_TEMPFAIL:
            break
    if finished.returncode:
        kind = DisturbedError if finished.returncode == os.EX_TEMPFAIL else RuntimeError
        raise kind(f"the open-loop load failed: {finished.stderr.strip()}")
    return OpenSample(**json.loads(finished.stdout))


def calibrate(share: float, measure: Callable[[float], float]) -> Level:
    """Find the rate at which a proxy takes a share of one processor. `measure` returns its share at a rate.

    CPU time per request falls with the rate, since a read finds more requests. So each step starts from the rate before.
    """
    rate = _CALIBRATION_RATE
    for _ in range(_CALIBRATION_STEPS):
        rate *= min(share / measure(rate), _MAX_STEP)
    return Level(share, round(rate, -2))


def in_rounds(
    levels: Sequence[Level],
    ways: list[str],
    rounds: int,
    report: Callable[[str], None],
    measure: Callable[[str, float, int], OpenSample],
) -> dict[Level, OpenSamples]:
    """Measure all ways once in each round at each level. `measure` takes a way, requests per second, and the round's number.

    If other processes disturb a round too much, the rounds before it are the result. The first round raises `DisturbedError`.
    """
    results: dict[Level, OpenSamples] = {level: {way: [] for way in ways} for level in levels}
    for number in range(rounds):
        order = in_turns(ways, number)
        try:
            taken = {(level, way): measure(way, level.rate, number) for level in levels for way in order}
        except DisturbedError as error:
            if number == 0:
                raise
            report(f"round {number + 1} of {rounds} and those after it are left out: {error}")
            break
        for (level, way), sample in taken.items():
            results[level][way].append(sample)
        report(f"round {number + 1} of {rounds}: " + "; ".join(map(str, levels)))
    return results


def measure_latency(
    names: Sequence[str], directory: Path, rounds: int, turn: float, report: Callable[[str], None]
) -> tuple[dict[Level, OpenSamples], dict[str, str]]:
    """Measure all ways at the loads of `SHARES`. The second result has the ways that can't be measured here."""
    laboratory = Laboratory()
    with ExitStack() as stack:
        ways, absent = stack.enter_context(started(names, f"127.0.0.1:{laboratory.port}", directory))
        for way in ways.values():
            if way.crowd:
                visit_once(way.address, laboratory.port, PRODUCE_TOPIC, way.crowd)
            laboratory.pin(way)
        levels = [_dearest(laboratory, ways, share) for share in SHARES]
        results = in_rounds(
            levels, list(ways), rounds, report, lambda way, rate, number: laboratory.sample(ways[way], rate, turn, number)
        )
    return results, absent


def _dearest(laboratory: Laboratory, ways: Mapping[str, Way], share: float) -> Level:
    def busy(name: str) -> Callable[[float], float]:
        return lambda rate: laboratory.sample(ways[name], rate, 1.0, 0).busy

    proxies = [name for name in ways if name not in {"direct", *WATCHED}]
    return min((calibrate(share, busy(name)) for name in proxies), key=lambda level: level.rate)
