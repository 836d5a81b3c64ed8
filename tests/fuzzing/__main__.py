"""Fuzz Weir's parsers: `make fuzz MINUTES=10`, or `python -m tests.fuzzing --minutes 10 --target config`.

Each target is a promise for any bytes: for example, that a parser raises its declared errors only. The library atheris changes
known inputs at random, and keeps those that reach new code. It is optional: pip install '.[fuzz]'.
"""

import argparse
import json
import logging
import shlex
import subprocess
import sys
import traceback
from pathlib import Path

from tests.fuzzing import corpus, registry
from tests.fuzzing.bounds import check_bounded

WORK = Path(".run/fuzzing")
LARGEST = 40_000
"""Bytes of a target's committed inputs. The shortest inputs come first, and the rest stays on this machine."""

_EXAMPLES = """\
examples:
  python -m tests.fuzzing --list                              each target with its promise and its committed inputs
  python -m tests.fuzzing --minutes 5 --target proxy_header   one target, 5 minutes of CPU time
  python -m tests.fuzzing --minutes 120                       all targets, one after the other, 120 minutes in all
  python -m tests.fuzzing --reproduce config .run/fuzzing/findings/config-0123456789  run one input again
  python -m tests.fuzzing --figures                           CPU time, executions and reached code of each target
  python -m tests.fuzzing --minimise                          take the inputs of earlier runs into the committed corpus

The minutes are CPU time, so a run may be stopped (kill -STOP) and continued. A finding does not end a run: its input is
saved below .run/fuzzing/findings, and the command that reproduces it is printed. A run begins with the inputs of earlier runs.

exit codes: 0 no finding, 1 findings, 2 wrong usage
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=_minutes, metavar="N", help="CPU time in all; targets get their shares of it")
    parser.add_argument(
        "--target", choices=registry.NAMES, action="append", metavar="NAME", help="only this target (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument(
        "--reproduce", nargs=2, metavar=("NAME", "FILE"), help="run one input of a target, and show its traceback"
    )
    parser.add_argument("--minimise", action="store_true", help="write the committed corpus from all known inputs")
    parser.add_argument("--figures", action="store_true", help="print the sums of all runs as a table in Markdown")
    parser.add_argument(
        "--work", type=Path, default=WORK, metavar="DIR", help=f"inputs, findings and figures (default: {WORK})"
    )
    options = parser.parse_args()
    names = options.target or registry.NAMES
    if options.list:
        return _list(names)
    if options.reproduce:
        return _reproduce(parser, *options.reproduce)
    if options.minimise:
        return _minimise(names, options.work)
    if options.figures:
        return _figures(names, options.work)
    if options.minutes is None:
        parser.error("give one of --minutes N, --list, --reproduce NAME FILE, --minimise or --figures")
    return _fuzz(parser, names, options.minutes * 60.0, options.work)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0.0 < minutes <= 10_000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes: write one above 0, such as 5")
    return minutes


def _list(names: tuple[str, ...]) -> int:
    for name in names:
        target, known = registry.load(name), corpus.read(name)
        print(f"{name:16} {target.promise}")
        print(f"{'':16} {len(known)} committed inputs, {sum(map(len, known))} bytes; {len(list(target.seeds()))} seeds")
    return 0


def _reproduce(parser: argparse.ArgumentParser, name: str, file: str) -> int:
    if name not in registry.NAMES:
        parser.error(f"--reproduce: there is no target {name!r}: use one of {', '.join(registry.NAMES)}")
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        parser.error(f"--reproduce: {file} can't be read: {error.strerror}: name a file below {WORK / 'findings'}")
    target = registry.load(name)
    print(f"{len(data)} bytes: {data[:200]!r}")
    try:
        target.check(data)
        check_bounded(target.check, data, target.steps_per_byte)
    except Exception:
        traceback.print_exc()
        return 1
    print("no finding: the promise holds for this input")
    return 0


def _minimise(names: tuple[str, ...], work: Path) -> int:
    for name in names:
        target = registry.load(name)
        found = [path.read_bytes() for path in (work / "corpus" / name).glob("*")]
        kept, steps = corpus.minimised(target.check, [*target.seeds(), *corpus.read(name), *found])
        size = 0
        small = [data for data in kept if (size := size + len(data)) <= LARGEST]
        corpus.write(name, small)
        print(f"{name:16} {len(small)} of {len(kept)} inputs, {sum(map(len, small))} bytes, {steps} steps of code", flush=True)
    return 0


def _figures(names: tuple[str, ...], work: Path) -> int:
    """A step is a line of Weir that runs after another line. All inputs are the committed ones and the seeds."""
    log = work / "runs.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    print("| target | CPU seconds | executions | steps by seeds | steps by all inputs | committed inputs | bytes |")
    print("|---|---|---|---|---|---|---|")
    cpu = executions = 0
    for name in names:
        target, known = registry.load(name), corpus.read(name)
        own = [run for run in runs if run["target"] == name]
        seconds, times = sum(run["cpu_seconds"] for run in own), sum(run["executions"] for run in own)
        cpu, executions = cpu + seconds, executions + times
        for data in known:  # the first time fills caches, whose code would count as reached
            target.check(data)
        seeds = corpus.minimised(target.check, target.seeds())[1]
        every = corpus.minimised(target.check, [*target.seeds(), *known])[1]
        print(f"| `{name}` | {seconds:.0f} | {times} | {seeds} | {every} | {len(known)} | {sum(map(len, known))} |", flush=True)
    print(f"| all | {cpu:.0f} | {executions} | | | | |")
    return 0


def _fuzz(parser: argparse.ArgumentParser, names: tuple[str, ...], seconds: float, work: Path) -> int:
    try:
        import atheris  # noqa: F401
    except ImportError:
        parser.error("atheris is missing: pip install '.[fuzz]' (wheels for Linux, Python 3.11 and later)")
    if len(names) == 1:
        from tests.fuzzing import engine

        engine.run(names[0], seconds, work, work / "runs.jsonl")
    shares = {name: registry.share(name) for name in names}
    failed = []
    for name in names:
        minutes = seconds * shares[name] / sum(shares.values()) / 60.0
        command = [sys.executable, "-m", "tests.fuzzing", "--target", name, "--minutes", f"{minutes:.4f}", "--work", str(work)]
        print(shlex.join(command), flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    for name in failed:
        for path in sorted((work / "findings").glob(f"{name}-*")):
            print(f"finding: python -m tests.fuzzing --reproduce {name} {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the code warns of each invalid input
    sys.exit(main())
