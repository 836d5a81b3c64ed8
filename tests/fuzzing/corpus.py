"""The committed inputs: a file for each target, with one input a line in base64."""

import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
_UNDER_TEST = tuple(f"{Path(__file__).parents[2] / package}/" for package in ("gateway", "protocol"))

Arc = tuple[Any, int, int]
"""A code object, a line, and the line that ran after it."""


def read(name: str) -> list[bytes]:
    path = FOLDER / f"{name}.txt"
    return [b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> None:
    lines = sorted(b64encode(data).decode() for data in set(inputs))
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def arcs(check: Callable[[bytes], None], data: bytes) -> set[Arc]:
    """The steps from line to line in the code under test. An exception of `check` ends them."""
    found: set[Arc] = set()
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_UNDER_TEST):
            return None
        found.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
        last[frame] = frame.f_lineno
        if event == "return":
            last.pop(frame, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(data)
    except Exception:
        pass
    finally:
        sys.settrace(before)
    return found


def minimised(check: Callable[[bytes], None], inputs: Iterable[bytes]) -> tuple[list[bytes], int]:
    """The inputs that reach new steps, the shortest first, and the number of all steps that they reach."""
    kept: list[bytes] = []
    seen: set[Arc] = set()
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        found = arcs(check, data)
        if not found <= seen:
            seen |= found
            kept.append(data)
    return kept, len(seen)
