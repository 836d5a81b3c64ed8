"""Child processes that never outlive their parent, however that one dies."""

import atexit
import ctypes
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_running: "weakref.WeakSet[subprocess.Popen[str]]" = weakref.WeakSet()


def _die_with_parent() -> Callable[[], None] | None:
    """Return what the child does between fork and exec so that the kernel kills it with its parent (Linux only).

    The kernel takes "parent" to be the thread that forked, so it is asked only where that thread lives as long as the
    process does; elsewhere `atexit` alone has to do.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        prctl = libc.prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(
    command: Sequence[str],
    *,
    stdin: int | IO[str] | None = subprocess.DEVNULL,
    stdout: int | IO[str] | None = None,
    stderr: int | IO[str] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> "subprocess.Popen[str]":
    """Start a process that is killed when this one ends. Text mode, line buffered. Raises OSError where it can't start.

    The child has its own session: Ctrl-C in the terminal reaches this process alone, which then stops the others.
    """
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        text=True,
        bufsize=1,
        start_new_session=True,
        preexec_fn=_die_with_parent(),
    )
    _running.add(process)
    return process


def stop(process: "subprocess.Popen[str]", timeout: float = 20.0) -> int:
    """Ask a process to end (SIGTERM; a frozen one wakes first), kill it after `timeout` seconds; its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        if process.poll() is None:
            process.kill()
            process.wait()
