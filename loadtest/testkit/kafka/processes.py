"""Child processes that never outlive their parent, even if the parent is killed."""

import atexit
import ctypes
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_running: "weakref.WeakSet[subprocess.Popen[str]]" = weakref.WeakSet()


def _die_with_parent() -> Callable[[], None] | None:
    """A preexec function that makes the kernel kill the child with its parent (Linux only).

    For the kernel, the parent is the thread that forked. So the function is used only in the main thread; in other threads,
    `atexit` kills the child.
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
    """Start a process that is killed when this one ends. Text mode, line buffered. Raises `OSError`.

    The child has its own session, so Ctrl-C in the terminal reaches only this process, which then stops its children.
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
    """Send SIGTERM (and SIGCONT to a frozen process), kill after `timeout` seconds, and return the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def franz_go(source: Path, program: Path) -> list[str] | None:
    """Build a client in Go, and return its command; None if this machine can't build it."""
    try:
        subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"franz-go is skipped: {error}", file=sys.stderr)
        return None
    return [str(program)]


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        if process.poll() is None:
            process.kill()
            process.wait()
