"""The Spark session: local with settings for one machine, or the cluster's own under spark-submit."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")
"""Spark's own talk while it starts, before `spark.log.level` holds, would stand between the lines of the report."""

_ALWAYS = {
    # Everything is in UTC: dates and hours of folders, and what reports show.
    "spark.sql.session.timeZone": "UTC",
}
_JAVA = "-XX:+UseParallelGC"
"""A batch job, not a service: throughput counts, pauses don't."""
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SMALL = {
    # What little there is goes through once: compiling for it and spreading it would take far longer than the work.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
SMALL_BYTES = 4 << 20
"""A ledger of fewer bytes (compressed: some 120 000 events) is small."""

_LOCAL = {
    # Aggregates of a batch are small; 200 tasks each, which is the default, would be spent on starting tasks.
    "spark.sql.shuffle.partitions": "8",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Reports are independent and each is many short stages: let them interleave.
    "spark.scheduler.mode": "FAIR",
}


def submitted() -> bool:
    """Whether spark-submit started this process; then master, memory and the like are its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_small(events: str) -> bool:
    """Whether a ledger is a small one; what is not in a folder of this machine is not."""
    return "://" not in events and sum(file.stat().st_size for file in Path(events).glob("date=*/hour=*/*")) < SMALL_BYTES


def spark_session(master: str, memory: str, *, skip_unreadable: bool, small: bool = False) -> SparkSession:
    """The session to work in. `memory`: of the driver, which in local mode does all the work, and if it is `small`, with little
    preparation.
    """
    builder = SparkSession.builder.appName("weir report")
    settings = dict(_ALWAYS)
    if skip_unreadable:
        settings["spark.sql.files.ignoreCorruptFiles"] = "true"
    if not submitted():
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it warns of what the host's name resolves to
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
