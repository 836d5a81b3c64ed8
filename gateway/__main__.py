"""The entry of `weir` and of `python -m gateway`. It imports little, so that Ctrl-C is understood from the first moment."""

import sys

from gateway import early_signals


def main() -> int:
    """Run the command of this process. Returns its exit code."""
    early_signals.end_at_once()
    # Here, so that Ctrl-C during these imports is understood.
    from gateway import commands, standard_streams

    standard_streams.prepare()
    early_signals.raise_again()
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
