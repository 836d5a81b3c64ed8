"""The entry of `weir` and of `python -m gateway`. It imports little, so that Ctrl-C is understood from the first moment."""

import gc
import sys
from typing import Final

from gateway import early_signals

_COLLECT_AFTER: Final = 50_000
"""New objects until Python looks for unreachable cycles. Imports make nearly none, and Python's 700 would cost 0.1 s of CPU."""


def main() -> int:
    """Run the command of this process. Returns its exit code."""
    gc.set_threshold(_COLLECT_AFTER)
    early_signals.end_at_once()
    # Here, so that Ctrl-C during these imports is understood.
    from gateway import commands, standard_streams

    standard_streams.prepare()
    early_signals.raise_again()
    try:
        return commands.main()
    finally:
        gc.freeze()  # at its end, the interpreter would look through all objects of all modules: 0.2 s of CPU


if __name__ == "__main__":
    sys.exit(main())
