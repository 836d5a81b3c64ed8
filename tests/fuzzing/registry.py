"""The targets: each module of `tests.fuzzing.targets` is one. A new module is fuzzed and replayed without further steps.

`check(data)` raises an exception if the code under test breaks its promise for these bytes. `seeds()` has valid inputs. A
module may also have `WORDS` for libFuzzer's dictionary, `SHARE` of the time (1.0), and `STEPS_PER_BYTE` (`bounds.py`).
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing import targets
from tests.fuzzing.bounds import STEPS_PER_BYTE


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    promise: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    steps_per_byte: int = STEPS_PER_BYTE


_FOLDER = Path(targets.__file__).parent
NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(targets.__path__)))


def load(name: str) -> Target:
    """Import the target, and with it the code under test."""
    module = importlib.import_module(f"tests.fuzzing.targets.{name}")
    return Target(
        name,
        " ".join((module.__doc__ or "").split()),
        module.check,
        module.seeds,
        tuple(getattr(module, "WORDS", ())),
        getattr(module, "STEPS_PER_BYTE", STEPS_PER_BYTE),
    )


def share(name: str) -> float:
    """The target's part of the time. It is read from the source, because the import has to wait for atheris."""
    found = re.search(r"^SHARE = ([\d.]+)$", (_FOLDER / f"{name}.py").read_text(), re.MULTILINE)
    return float(found[1]) if found else 1.0
