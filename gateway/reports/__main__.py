"""`python -m gateway.reports`, and the script that spark-submit is given."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Started as a script, the folder of the reports comes first on the path, where they would hide modules of the same names;
    # what has to be found is the package that they are in.
    here = Path(__file__).resolve().parent
    sys.path = [str(here.parents[1]), *(entry for entry in sys.path if not entry or Path(entry).resolve() != here)]

    from gateway.reports.job.command import main

    sys.exit(main())
