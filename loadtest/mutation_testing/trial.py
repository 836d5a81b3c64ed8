"""Runs tests against mutants, each in a process of its own that ends with the first failed test.

The parent collects the tests once, runs them, and notes the functions that each test calls. A mutant of a function meets only
the tests that call this function, the quick ones first.
"""

import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from loadtest.mutation_testing.areas import Area
from loadtest.mutation_testing.code_swap import CodeSwap, FunctionKey
from loadtest.mutation_testing.mutants import Mutant

KILLED, SURVIVED, TIMED_OUT, UNTESTED, AT_IMPORT = "killed", "survived", "timed out", "untested", "at import"

_MOST_TEST_SECONDS: Final = 4.0
"""The CPU time of the tests that a mutant meets. Slower tests do not count."""

_CPU_SECONDS, _WALL_SECONDS = 10, 120
_MEMORY: Final = 2 << 30

# One run of a test is like the other, and the first failing example is enough.
settings.register_profile(
    "mutants", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate), max_examples=60
)

OPTIONS: Final = [
    "-q", "-s", "-x", "-p", "no:cacheprovider", "-m", "not process", "--hypothesis-profile=mutants",
    "-o", "timeout=0", "-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
]  # fmt: skip

Report = Callable[[str, Mutant, str], None]
"""Gets a module, a mutant and its outcome."""


def _attempt(child: Callable[[], bool]) -> str:
    """Run `child` in a new process: True if its tests passed."""
    pid = os.fork()
    if pid == 0:
        try:
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(quiet, stream)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_WALL_SECONDS)
            passed = child()
        except BaseException:  # a mutant may raise anything
            passed = False
        os._exit(0 if passed else 1)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return TIMED_OUT
    return SURVIVED if os.WEXITSTATUS(status) == 0 else KILLED


class AreaTrial:
    """A pytest plugin: after the collection it runs the tests once, and then against each mutant."""

    def __init__(self, modules: Iterable[str], mutants: dict[str, list[Mutant]], report: Report, cache: Path) -> None:
        self._modules = modules  # all of the area, as the cache is for all of them
        self._mutants = mutants  # by module
        self._report = report
        self._cache = cache
        self._calls: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self._in_child = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = {str(Path(module).resolve()): Path(module).read_text() for module in self._modules}
        swap = CodeSwap(files)
        self._run_once(session, swap)
        gc.collect()
        gc.freeze()  # so that children do not copy every page
        for module, mutants in self._mutants.items():
            file = str(Path(module).resolve())
            for mutant in mutants:
                found = swap.changed(file, mutant.source)
                if found is None:
                    self._report(module, mutant, AT_IMPORT)
                    continue
                key, code = found
                tests = self._tests_of(key, session.items)
                self._report(module, mutant, self._meet(swap, key, code, tests) if tests else UNTESTED)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            if self._in_child:
                os._exit(1)
            sys.exit(f"{report.nodeid} fails without a mutant:\n{report.longreprtext}")

    def _run_once(self, session: pytest.Session, swap: CodeSwap) -> None:
        """A test whose file is unchanged since the last run is not run again."""
        known: dict[str, Any] = json.loads(self._cache.read_text()) if self._cache.exists() else {}
        digests = {path: sha256(path.read_bytes()).hexdigest() for path in {item.path for item in session.items}}
        noted: dict[str, Any] = {}
        for index, item in enumerate(session.items):
            entry = known.get(item.nodeid)
            if entry is None or entry["file"] != digests[item.path]:
                seconds, called = self._measured(session, item, swap)
                entry = {"file": digests[item.path], "seconds": seconds, "calls": sorted(called)}
            noted[item.nodeid] = entry
            for file, name in entry["calls"]:
                self._calls.setdefault((file, name), []).append((entry["seconds"], index))
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        self._cache.write_text(json.dumps(noted))

    def _measured(self, session: pytest.Session, item: pytest.Item, swap: CodeSwap) -> tuple[float, set[tuple[str, str]]]:
        seen: dict[int, CodeType] = {}

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                seen[id(frame.f_code)] = frame.f_code

        began = time.process_time()
        sys.setprofile(note)
        _run(session, [item])
        sys.setprofile(None)
        seconds = time.process_time() - began
        return seconds, {key[:2] for code in seen.values() if (key := swap.key(code)) is not None}

    def _tests_of(self, key: FunctionKey, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests of the module's own files, and then the quickest others."""
        own = f"test_{Path(key[0]).stem}"
        calls = sorted(
            (not items[index].path.stem.startswith(own), seconds, index) for seconds, index in self._calls.get(key[:2], [])
        )
        found: list[pytest.Item] = []
        total = 0.0
        for _, seconds, index in calls:
            total += seconds
            if found and total > _MOST_TEST_SECONDS:
                break
            found.append(items[index])
        return found

    def _meet(self, swap: CodeSwap, key: FunctionKey, code: CodeType, tests: list[pytest.Item]) -> str:
        def child() -> bool:
            self._in_child = True
            swap.put(key, code)
            _run(tests[0].session, tests)
            return True

        return _attempt(child)


def _run(session: pytest.Session, items: list[pytest.Item]) -> None:
    for item, after in zip(items, [*items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def try_area(area: Area, mutants: dict[str, list[Mutant]], report: Report, cache: Path) -> None:
    """Try the mutants of functions. The outcome of other mutants is `AT_IMPORT`. Exits if a test fails without a mutant."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = pytest.main([*OPTIONS, *area.tests], plugins=[AreaTrial(area.modules, mutants, report, cache)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {code!r}")


def try_at_import(tests: Iterable[str], module: str, mutant: Mutant) -> str:
    """Import everything anew, with the mutant in place of the module. This process must not have imported the module."""

    def child() -> bool:
        sys.meta_path.insert(0, _Mutated(module, mutant.source))
        return pytest.main([*OPTIONS, *tests]) == pytest.ExitCode.OK

    return _attempt(child)


class _Mutated(MetaPathFinder):
    def __init__(self, module: str, source: str) -> None:
        self._name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(self._source, spec.loader.path)
        return spec


class _Loader(Loader):
    def __init__(self, source: str, path: str) -> None:
        self._source, self._path = source, path

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._path, "exec", dont_inherit=True), module.__dict__)
