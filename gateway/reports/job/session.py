"""The Spark session: local with settings for one machine, or the cluster's under spark-submit."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")
"""Without this file, Spark logs many lines at start-up, before `spark.log.level` applies."""

_ALWAYS = {
    # The folders' dates and hours and the times in the reports are in UTC.
    "spark.sql.session.timeZone": "UTC",
    # The driver lists the folders of some hours itself: a Spark job for it would take longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Each task writes rows of few tables, so it need not sort them by table.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}
_JAVA = "-XX:+UseParallelGC"
"""A batch job needs throughput; pauses do not matter."""
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SMALL = {
    # For so few events, code generation and distribution take far longer than the work itself.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SMALL_BYTES = 4 << 20
"""A ledger below this size is small. Compressed, it is about 120 000 events."""

_LOCAL = {
    # A batch's aggregates are small, so the default of 200 tasks would mostly be overhead.
    "spark.sql.shuffle.partitions": "8",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Reports are independent and have many short stages, so they may interleave.
    "spark.scheduler.mode": "FAIR",
}


def submitted() -> bool:
    """True if spark-submit started this process. Its options then set the master and the memory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_small(events: str) -> bool:
    """True if a ledger on this machine is below `SMALL_BYTES`; False for any other path."""
    return "://" not in events and sum(file.stat().st_size for file in Path(events).glob("date=*/hour=*/*")) < SMALL_BYTES


def spark_session(master: str, memory: str, *, skip_unreadable: bool, small: bool = False) -> SparkSession:
    """The Spark session. `memory` is the driver's heap; in local mode the driver does all the work.

    `small` selects settings with less start-up work, for a small ledger.
    """
    builder = SparkSession.builder.appName("weir report")
    settings = dict(_ALWAYS)
    if skip_unreadable:
        settings["spark.sql.files.ignoreCorruptFiles"] = "true"
    if not submitted():
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # avoids a warning if the host name resolves to a loopback address
        builder = builder.master(master)
        java = _SMALL_JAVA if small else _JAVA
        settings |= (
            _LOCAL
            | (_SMALL if small else {})
            | {
                "spark.driver.memory": memory,
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.extraJavaOptions": f"{java} -Dlog4j2.configurationFile={_QUIET.as_uri()}",
            }
        )
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
