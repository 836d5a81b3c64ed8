"""The guided run of one target in this process, by atheris (libFuzzer with the coverage of Python code).

The budget is CPU time of the process: a process that is stopped (SIGSTOP) uses none, so it goes on where it was.
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.fuzzing import corpus
from tests.fuzzing.bounds import check_bounded

BOUNDS_EVERY = 2_000
"""The number of inputs from one check of time and memory to the next. Counting makes an input fifty times as slow."""

HANG_SECONDS = 20.0
"""CPU time after which an input counts as a hang."""

MAX_BYTES = 4_096

_ROOT = Path(__file__).parents[2]
_OWN = tuple(f"{_ROOT / package}/" for package in ("gateway", "protocol", "tests"))


class HangError(BaseException):
    """An input took `HANG_SECONDS` of CPU time. No `except Exception` of the code under test catches it."""


class Findings:
    """The exceptions of a run. The first input of each place in the code is saved."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target = target
        self._folder = folder
        self.counts: Counter[str] = Counter()

    def add(self, error: BaseException, data: bytes) -> None:
        place = place_of(error)
        self.counts[place] += 1
        if self.counts[place] > 1:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self.target}-{hashlib.sha256(place.encode()).hexdigest()[:10]}"
        path.write_bytes(data)
        print(f"\nFOUND {place}: {str(error)[:300]}", file=sys.stderr)
        print(f"  reproduce: python -m tests.fuzzing --reproduce {self.target} {path}", file=sys.stderr, flush=True)


def place_of(error: BaseException) -> str:
    """The type of the error, and the innermost line of this project that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OWN)]
    frame = frames[-1]
    return f"{type(error).__name__} at {Path(frame.filename).relative_to(_ROOT)}:{frame.lineno}"


def run(name: str, cpu_seconds: float, work: Path, log: Path) -> None:
    """Fuzz until the CPU time is used up, and append the figures to `log`. Ends the process."""
    import atheris  # here, so that replays do without it

    from tests.fuzzing import registry

    with atheris.instrument_imports(include=["protocol", "gateway"]):
        target = registry.load(name)
    findings = Findings(name, work / "findings")
    folder = work / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    known = len(list(folder.iterdir()))
    for data in (*target.seeds(), *corpus.read(name)):
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    executions, began = 0, time.process_time()

    def finish() -> None:
        figures = {
            "target": name,
            "cpu_seconds": round(time.process_time() - began, 1),
            "executions": executions,
            "inputs_before": known,
            "inputs": len(list(folder.iterdir())),
            "findings": dict(findings.counts),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(json.dumps(figures) + "\n")
        print(json.dumps(figures), file=sys.stderr, flush=True)
        os._exit(1 if findings.counts else 0)  # libFuzzer has written the inputs, and catches SystemExit

    def one(data: bytes) -> None:
        nonlocal executions
        executions += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
        try:
            if executions % BOUNDS_EVERY == 0:
                check_bounded(target.check, data, target.steps_per_byte)
            else:
                target.check(data)
        except (Exception, HangError) as error:  # a finding does not end the run
            findings.add(error, data)
        if executions % 64 == 0 and time.process_time() - began > cpu_seconds:
            finish()

    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError(f"{HANG_SECONDS:g} s of CPU time")

    def stop(number: int, frame: FrameType | None) -> None:
        finish()

    signal.signal(signal.SIGVTALRM, hang)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    options = [
        f"-max_len={MAX_BYTES}",
        "-timeout=1000000",  # seconds by the wall clock: an input whose process was stopped would count as slow
        "-rss_limit_mb=2048",
        "-handle_int=0",
        "-handle_term=0",
        "-reload=0",
        "-verbosity=0",
    ]
    if target.words:
        words = work / f"{name}.dict"
        words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))
        options.append(f"-dict={words}")
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={work}/", str(folder)], one, enable_python_coverage=True)
    atheris.Fuzz()
