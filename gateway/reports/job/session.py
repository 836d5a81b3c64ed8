"""The Spark session: local with settings for one machine, or the cluster's under spark-submit."""

import json
import locale
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISDIR

import pyspark
from pyspark.sql import SparkSession

from gateway.reports.job.calls import call_less
from gateway.reports.job.command import submitted
from gateway.reports.job.folders import refuse_loops, statuses
from gateway.reports.job.ledger import hour_of
from gateway.reports.job.period import Period
from gateway.reports.job.state import LAYOUT

_QUIET = Path(__file__).with_name("log4j2.properties")
"""Without this file, Spark logs many lines at start-up, before `spark.log.level` applies."""

_ALWAYS = {
    # The folders' dates and hours and the times in the reports are in UTC.
    "spark.sql.session.timeZone": "UTC",
    # The driver lists the folders of some hours itself: a Spark job for it would take longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Each task writes rows of few tables, so it need not sort them by table.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # It would check each line twice: once for the rows that the line becomes, and once before.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromGenerate",
    # A batch needs 92 generated classes, and roll-ups and reports have others. Spark's default of 100 keeps too few.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # With more groups than 128, Spark sorts all rows before it collects lists, instead of hashing them.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
    # PySpark would look up the caller of each column function, for error messages: a second of a short run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_JAVA = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
"""A batch job needs throughput; pauses do not matter. Below this size of classes, Java collects no garbage for them."""
_FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's second compiler takes half a minute of CPU time for Spark's generated code.

Without it, Java reserves 48 MiB for compiled code. A run over many hours fills them and then fails.
"""
_SMALL_JAVA = f"-XX:+UseSerialGC {_FIRST_COMPILER}"
FEW_NEW_OBJECTS = "-XX:NewRatio=6"
"""A seventh of the heap is for new objects. Java then has 1.5 GiB between two runs of one process, in place of 2.1."""
_WHOLE_HEAP = f"-Xms{{memory}} {FEW_NEW_OBJECTS}"
"""For a brief run: the heap has its full size from the start, and a seventh of it is for new objects.

With a heap that grows, one more hour had 2 full and 20 other collections: 1.4 of 28 s.
"""
FEW_ROWS = {
    # For so few rows, code generation and distribution take far longer than the work itself.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task reads many small files.
    "spark.sql.files.openCostInBytes": "0",
}
SMALL_BYTES = 4 << 20
"""A ledger below this size is small. Compressed, it is about 120 000 events."""
BRIEF_BYTES = 32 << 20
"""A run with fewer new bytes (a million events) ends before Java's second compiler pays."""
FEW_HOURS = 24
"""The maximum number of hours outside of roll-ups for which a brief run makes most reports with the settings `FEW_ROWS`."""

_LOCAL = {
    # A batch's aggregates are small, so the default of 200 tasks would mostly be overhead.
    "spark.sql.shuffle.partitions": "8",
    # Many small tasks: no core waits for the last one, and each has few groups in memory.
    "spark.sql.files.maxPartitionBytes": "16m",
    # Executors on other hosts could not connect to a loopback address.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_OWN = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    # Without the UI nobody sees the text of a plan. Spark writes it for each query.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "0",
    "spark.ui.showConsoleProgress": "false",
    # Reports are independent and have many short stages, so they may interleave.
    "spark.scheduler.mode": "FAIR",
}


_FIRST_JARS = (
    "spark-catalyst_", "scala-library-", "spark-core_", "spark-sql-api_", "spark-sql_", "scala-reflect-", "commons-compiler-",
    "log4j-core-", "parquet-", "hadoop-client-", "jackson-", "janino-", "spark-", "netty-", "antlr4-", "log4j-", "py4j-",
)  # fmt: skip
"""The names of jars with nearly all classes that a report loads, most classes first."""


def first_jars() -> str:
    """The class path of `_FIRST_JARS`. Java otherwise looks for each class in half of Spark's 280 jars.

    Empty for another Spark than PySpark's own. Empty with a folder of settings as well, because those may set a class path.
    """
    if os.environ.keys() & {"SPARK_HOME", "SPARK_CONF_DIR"}:
        return ""
    jars = sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    return os.pathsep.join(dict.fromkeys(str(jar) for first in _FIRST_JARS for jar in jars if jar.name.startswith(first)))


def ledger_bytes(events: str, out: str, period: Period) -> tuple[int, int]:
    """The size of the period's files on this machine, and of those that `out` lacks. Both are huge for any other path.

    Raises `OSError`.
    """
    if "://" in events or "://" in out:
        return sys.maxsize, sys.maxsize
    sizes: dict[Path, int] = {}
    nested: set[Path] = set()
    for file, status in statuses(Path(events).absolute(), "date=*/hour=*/*"):
        hour = hour_of(file.as_posix())
        if hour is not None and period.includes(hour):
            sizes[file] = status.st_size
            if S_ISDIR(status.st_mode):
                nested.add(file.parent)
    for folder in nested:
        refuse_loops(folder)
    done = {tuple(file) for mark, _ in statuses(Path(out, "_state", LAYOUT, "done"), "*.json") for file in _files_of(mark)}
    new = sum(size for file, size in sizes.items() if (file.name, size) not in done)
    return sum(sizes.values()), new


def _files_of(mark: Path) -> Sequence[Sequence[object]]:
    """The names and lengths of the files in a mark of `state`. None of a damaged one, which `State.load` refuses."""
    try:
        return [file for batch in json.loads(mark.read_bytes())["batches"] for hour in batch["hours"] for file in hour["files"]]
    except (ValueError, LookupError, TypeError):
        return []


def spark_session(
    master: str, memory: str, *, total: int = sys.maxsize, new: int = sys.maxsize, java: str = ""
) -> SparkSession:
    """The Spark session. `memory` is the driver's heap; in local mode the driver does all the work.

    `total` and `new` are `ledger_bytes`: a small ledger and a short run get settings with less start-up work.
    `java` are more options of Java.
    """
    builder = SparkSession.builder.appName("weir report")
    settings = dict(_ALWAYS)
    if not submitted():
        _use_utf8()
        if _is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no warning if the host name resolves to a loopback address
        builder = builder.master(master)
        settings |= own_settings(master, memory, total, new, java)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    call_less(spark, brief=new < BRIEF_BYTES)
    return spark


def _use_utf8() -> None:
    """Let Java read the names of files as UTF-8. Under LC_ALL=C it would pass over names with other letters than ASCII."""
    if locale.nl_langinfo(locale.CODESET) != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def few_rows_session(spark: SparkSession) -> SparkSession:
    """A session for queries with few rows, beside `spark`."""
    few: SparkSession = spark.newSession()
    for key, value in FEW_ROWS.items():
        few.conf.set(key, value)
    return few


def own_settings(master: str, memory: str, total: int, new: int, java: str = "") -> dict[str, str]:
    """The settings of a session that `weir report` starts itself."""
    small = total < SMALL_BYTES
    brief = f"{_JAVA} {_FIRST_COMPILER} {_WHOLE_HEAP.format(memory=memory)}"
    compiler = _SMALL_JAVA if small else brief if new < BRIEF_BYTES else _JAVA
    driver = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{compiler} -Dlog4j2.configurationFile={_QUIET.as_uri()} {java}",
    }
    if jars := first_jars():
        driver["spark.driver.extraClassPath"] = jars
    return _OWN | (_LOCAL if _is_local(master) else {}) | (FEW_ROWS if small else {}) | driver


def _is_local(master: str) -> bool:
    return master.startswith("local")
