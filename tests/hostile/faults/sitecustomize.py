"""Faults of the machine below a gateway. Python imports this before the gateway's own code (see the fixture `faults`).

`WEIR_FAULTS` names a folder. Its file `wall` has the seconds by which the wall clock is ahead. Its file `accept` has the errno
with which the next accept(2) fails, which removes the file.
"""

import os
import socket
import time
from pathlib import Path

FOLDER = Path(os.environ["WEIR_FAULTS"])

_time = time.time
_accept = socket.socket.accept


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


time.time = _wall
socket.socket.accept = _failing_accept  # type: ignore[method-assign]
