"""Makes the archive of Java's classes that the tests with Spark and their `weir report` read. Each Java then starts faster.

python -m loadtest.testkit.spark_classes
"""

import os
import sys
import tempfile
from pathlib import Path

from gateway.events import UsageSample
from gateway.reports.job.class_archive import class_archive
from gateway.reports.job.messages import Messages
from gateway.reports.job.period import Period
from loadtest.scenarios.ledger.files import write_events
from loadtest.testkit.paths import CACHE


def make_archive() -> bool:
    """Make the reports of one event. At its end, Java writes the archive. False if there is none afterwards."""
    from gateway.reports.job.report_run import ReportRun
    from gateway.reports.job.session import BRIEF_BYTES, spark_session

    archive = class_archive(worth=True)
    if archive is None:
        return False
    if not archive.is_due:
        return True
    spark = spark_session("local[1]", "1g", total=0, new=BRIEF_BYTES, java=archive.options)
    with tempfile.TemporaryDirectory() as name:
        write_events(Path(name, "ledger"), [UsageSample(time_ms=0, gateway="weir-0", kind="produce", amount=1.0)])
        run = ReportRun(spark, f"{name}/ledger", f"{name}/out", Period(), 24, Messages(quiet=True), is_small=True)
        run.make()
    spark.stop()
    archive.store()
    return archive.path.exists()


if __name__ == "__main__":
    os.environ.setdefault("XDG_CACHE_HOME", str(CACHE))
    sys.exit(0 if make_archive() else 1)
