"""The entry of `weir` and of `python -m gateway`. It imports little, so that Ctrl-C is understood from the first moment."""

import os
import signal
import sys

_STDERR, _INTERRUPTED = 2, 130


def main() -> int:
    """Run the command of this process. Returns its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end)
    # Here, because an exception in the middle of an import shows a traceback, or gets lost.
    from gateway import commands, standard_streams

    standard_streams.prepare()
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return commands.main()


def _end(*_: object) -> None:
    """End the process at once. Nothing has been printed or changed."""
    try:
        os.write(_STDERR, b"interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
