"""Operating-system faults for a gateway. Python imports this before the gateway's own code (see the fixture `faults`).

`WEIR_FAULTS` names a folder. Its file `wall` has the seconds by which the wall clock is ahead. Its file `accept` has the errno
with which the next accept(2) fails, which removes the file. Its file `threads` makes the next work for a pool of threads fail
as if the system had no thread left, which removes the file.
"""

import os
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["WEIR_FAULTS"])

_time = time.time
_accept = socket.socket.accept
_submit = ThreadPoolExecutor.submit


def _wall() -> float:
    try:
        return _time() + float((FOLDER / "wall").read_text() or 0.0)
    except FileNotFoundError:
        return _time()


def _failing_accept(self: socket.socket) -> tuple[socket.socket, object]:
    fault = FOLDER / "accept"
    if fault.exists():
        number = int(fault.read_text())
        fault.unlink()
        raise OSError(number, os.strerror(number))
    return _accept(self)


def _failing_submit(self: ThreadPoolExecutor, *work: Any, **more: Any) -> "Future[Any]":
    fault = FOLDER / "threads"
    if fault.exists():
        fault.unlink()
        raise RuntimeError("can't start new thread")
    return _submit(self, *work, **more)


time.time = _wall
ThreadPoolExecutor.submit = _failing_submit  # type: ignore[method-assign]
socket.socket.accept = _failing_accept  # type: ignore[method-assign]
