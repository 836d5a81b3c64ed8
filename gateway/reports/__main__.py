"""`python -m gateway.reports`, and the script for spark-submit."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's folder first on the path, where the reports would hide modules of the same names. Replace it by
    # the folder that contains the package `gateway`.
    here = Path(__file__).resolve().parent
    sys.path = [str(here.parents[1]), *(entry for entry in sys.path if not entry or Path(entry).resolve() != here)]

    from gateway import early_signals

    early_signals.end_at_once()  # Spark has its own handler, and replaces this one
    from gateway.reports.job.command import main

    sys.exit(main())
