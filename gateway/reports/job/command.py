"""The command `weir report`: its options, the check of its requirements, and its progress messages.

The module imports PySpark only when a report runs.
"""

import argparse
import logging
import os
import re
import shutil
import signal
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from threading import Thread
from typing import TYPE_CHECKING

from gateway.files.path_faults import mode_at
from gateway.reports.job.messages import InUseError, Messages, only_run, unreadable_folder
from gateway.reports.job.period import Hour, Period, parsed
from gateway.whole_number import MAX_PORT, whole_number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.reports.job.class_archive import ClassArchive
    from gateway.reports.what_if.targets import WhatIfQuotas

OK, FAILED, USAGE = 0, 1, 2

_ENDING = (signal.SIGINT, signal.SIGTERM)

_TOPIC = "__weir_throttles"

_LEAST_MEMORY = 512 << 20
"""Bytes. Spark refuses a heap of less than 450 MiB."""

_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}

ABOUT = """\
Reads the throttle ledger and reports the throttled clients, their quotas, the times, and the limits that would fit their use.
Writes each report as Parquet and as CSV, and all of them as one HTML page (report.html) that works offline.

The events of an hour are read once. Their aggregates stay in OUT/_state, so the next run reads only new hours and hours with
new files. Invalid lines are counted, and written to OUT/_rejected with the reason.

Needs Java 17+ and:  pip install 'path/to/weir[reports]', with the path of Weir's wheel or checkout
"""

EXAMPLES = """\
examples:
  weir report --events ./throttle-ledger --out ./report                        all hours, on this machine
  weir report --events ./throttle-ledger --out ./report --from 2026-11-20      from this day on (UTC)
  weir report --events ... --out ... --from 2026-11-21T14 --to 2026-11-21T15   two hours
  weir report --events ./throttle-ledger --out ./report --what-if new.yaml     other quotas: who would be throttled?
  weir report --events ./throttle-ledger --out ./report --every 1h             stay, and repeat it every hour
  weir report --kafka 127.0.0.1:9092 --events ./from-kafka --out ./report      first fetch the ledger's topic into files

on a cluster, with any path that Hadoop can read and write:
  spark-submit --master yarn "$(weir report --where)" --events hdfs:///weir/ledger --out hdfs:///weir/report
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", metavar="PATH", help="the ledger's path: the folder with the date=.../hour=.../ folders")
    parser.add_argument("--out", metavar="DIR", help="the folder for the reports and the aggregates; created if it is missing")
    parser.add_argument(
        "--from",
        dest="first",
        type=partial(_hour, 0),
        metavar="TIME",
        help="the first day or hour: 2026-11-20 or 2026-11-20T15, UTC",
    )
    parser.add_argument("--to", dest="last", type=partial(_hour, 23), metavar="TIME", help="the last day or hour, included")
    parser.add_argument(
        "--what-if",
        type=Path,
        metavar="FILE",
        help="also report the clients that the section `quotas` of FILE would have throttled; FILE needs no other section",
    )
    parser.add_argument(
        "--every",
        type=_interval,
        metavar="TIME",
        help="stay, and repeat the run at this interval, such as 15m or 1h. Later runs take a half to four fifths of the"
        " time, but Java keeps its memory in between",
    )
    spark = parser.add_argument_group("Spark (with spark-submit, use the options of spark-submit instead)")
    spark.add_argument(
        "--master", default="local[*]", metavar="URL", help="the Spark master (default: local[*], all cores of this machine)"
    )
    spark.add_argument(
        "--memory", type=_memory, default="3g", metavar="SIZE", help="the heap of the Spark driver (default: 3g)"
    )
    spark.add_argument(
        "--batch-hours", type=_positive, default=24, metavar="N", help="number of new hours to read at once (default: 24)"
    )
    spark.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="leave out what can't be read of a file, and name the file",
    )
    kafka = parser.add_argument_group("from the ledger's Kafka topic")
    kafka.add_argument(
        "--kafka",
        type=_servers,
        metavar="HOST:PORT,...",
        help="first fetch the new records of the topic into files under --events",
    )
    kafka.add_argument("--topic", metavar="NAME", help=f"with --kafka: the ledger's topic (default: {_TOPIC})")
    kafka.add_argument(
        "--kafka-properties",
        type=Path,
        metavar="FILE",
        help="with --kafka: a file with security.protocol, sasl.* and ssl.* settings; docs/how-to/reports.md lists the keys",
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress messages")
    parser.add_argument("--where", action="store_true", help="print the path of the script for spark-submit, and exit")


def run(options: argparse.Namespace) -> int:
    """Write the reports and return the exit code."""
    messages = Messages(quiet=options.quiet)
    if options.where:
        messages.result(str(Path(__file__).parents[1] / "__main__.py"))
        return OK
    for option in ("events", "out"):
        # An empty path, such as that of an unset variable, would be this folder for one part of the job, and / for another.
        if not getattr(options, option):
            messages.error(f"--{option} is missing or empty; see weir report --help")
            return USAGE
    if options.first and options.last and options.first > options.last:
        messages.error("--from is after --to, so the period has no hours; give the earlier time to --from")
        return USAGE
    for option, value in (("--topic", options.topic), ("--kafka-properties", options.kafka_properties)):
        if value is not None and not options.kafka:
            messages.error(f"{option} {value} needs --kafka: without it, only the files under --events are read")
            return USAGE
    missing = missing_requirement()
    if missing is not None:
        messages.error(f"{missing}")
        return FAILED
    if (fault := _events_fault(options) or _out_fault(options)) is not None:
        messages.error(fault)
        return FAILED
    quotas = None
    if options.what_if is not None:
        quotas = _what_if(options.what_if, messages)
        if quotas is None:
            return FAILED
    return _run(options, messages, quotas)


def _what_if(path: Path, messages: Messages) -> "WhatIfQuotas | None":
    """The quotas of the file, or None after its errors."""
    from gateway.config.problems import ConfigError
    from gateway.reports.what_if.targets import load_what_if

    try:
        quotas = load_what_if(path)
    except ConfigError as error:
        for problem in error.problems:
            messages.error(f"--what-if {path}: {problem}")
        return None
    for warning in quotas.warnings:
        messages.error(f"--what-if {path}: warning: {warning}")
    return quotas


def missing_requirement() -> str | None:
    """A message about software that must be installed first, or None."""
    absent = [name for name in ("pyspark", "plotly", "jinja2") if find_spec(name) is None]
    if absent:
        names = " and ".join(absent)
        return f"{names} not installed; pip install 'path/to/weir[reports]', with the path of Weir's wheel or checkout"
    if java_file() is not None:
        return None
    if home := os.environ.get("JAVA_HOME"):
        return f"no Java found at JAVA_HOME={home}; set JAVA_HOME to the folder of a JDK 17 or newer, or unset it"
    return "no Java found; install a JDK 17 or newer (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


def java_file() -> Path | None:
    """The program that Spark starts as Java, through all links. With JAVA_HOME, Spark does not look at the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return None if found is None else Path(found).resolve()


def _events_fault(options: argparse.Namespace) -> str | None:
    """A message if this machine has no folder of a ledger there. Under spark-submit, a path may be one of the cluster's."""
    if options.kafka or "://" in options.events or submitted():
        return None
    try:
        mode = mode_at(Path(options.events))
    except PermissionError as error:
        return unreadable_folder(error)
    if S_ISDIR(mode):
        return None
    reason = "no folder" if mode else "no such path"
    return f"--events {options.events}: {reason}; give it the folder with date=.../hour=.../ folders"


def _out_fault(options: argparse.Namespace) -> str | None:
    """A message if no report can be written to the folder of this machine now. Makes the folder."""
    if "://" in options.out or submitted():
        return None
    folder, fault = Path(options.out), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            fault = "it can't be written to (Permission denied)"
        elif options.every is None:  # otherwise a later run may find the folder free
            with only_run("--out", folder):
                pass
    except InUseError as error:
        return str(error)
    except FileExistsError:
        fault = "that is a file"
    except (OSError, ValueError) as error:
        fault = f"it can't be made ({getattr(error, 'strerror', None) or error})"
    return fault and f"--out {options.out}: {fault}; give it a folder in which you may write"


def submitted() -> bool:
    """True if spark-submit started this process. Its options then set the master and the memory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _run(options: argparse.Namespace, messages: Messages, quotas: "WhatIfQuotas | None") -> int:
    from gateway.reports.job.session import SMALL_BYTES, ledger_bytes

    if options.kafka and "://" in options.events:
        messages.error(f"with --kafka, --events {options.events} must be a folder of this machine")
        return USAGE
    stays = options.every is not None
    if not _fetch(options, messages):
        return FAILED
    period = Period(options.first, options.last)
    try:
        # A process that stays gains from compiled code, and its ledger may grow.
        total, new = (sys.maxsize, sys.maxsize) if stays else ledger_bytes(options.events, options.out, period)
    except OSError as error:
        messages.error(unreadable_folder(error))
        return FAILED
    started = _start_spark(options, messages, total, new)
    if started is None:
        return FAILED
    spark, archive = started
    from gateway.reports.job.java_process import JavaEndedError, JavaProcess
    from gateway.reports.job.report_run import NoReportError, ReportRun
    from gateway.reports.job.state import StateError

    out, is_small = options.out.rstrip("/"), total < SMALL_BYTES
    skip = options.skip_unreadable
    run = ReportRun(spark, options.events, out, period, options.batch_hours, messages, quotas, is_small, skip)
    process = JavaProcess.of_spark()
    try:
        if stays:
            run.repeat(options.every, partial(_fetch, options, messages), process.wait)
        found = run.make()
    except (NoReportError, StateError, JavaEndedError) as error:
        messages.error(str(error))
        return FAILED
    except Exception:
        try:
            process.wait()
        except JavaEndedError as error:
            messages.error(str(error))
            return FAILED
        raise
    finally:
        if not process.has_ended():
            spark.stop()
    if archive is not None and archive.is_due:
        messages.progress("storing Java's classes, so that the next runs start faster")
        archive.store()
    run.end(found)
    return OK


def _start_spark(
    options: argparse.Namespace, messages: Messages, total: int, new: int
) -> "tuple[SparkSession, ClassArchive | None] | None":
    """The session and Java's archive of classes, or None after the error. The sizes are those of `ledger_bytes`."""
    from gateway.reports.job.class_archive import class_archive
    from gateway.reports.job.session import BRIEF_BYTES, FEW_NEW_OBJECTS, spark_session

    stays = options.every is not None
    # After Java's end, Py4J logs a traceback for each call that fails, even behind the message that explains the end. The
    # exceptions of these calls say the same.
    logging.getLogger().disabled = True
    messages.progress("starting Spark")
    # Java inherits the blocked signals, so Ctrl-C does not kill it or its children in the middle of their work.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    # Python imports most modules while Java starts.
    Thread(target=import_module, args=("gateway.reports.job.page",)).start()
    try:
        archive = class_archive(worth=BRIEF_BYTES <= total < sys.maxsize)
        java = archive.options if archive else ""
        if stays:
            java = f"{java} {FEW_NEW_OBJECTS}"
        return spark_session(options.master, options.memory, total=total, new=new, java=java), archive
    except Exception as error:  # from PySpark or Py4J; Java has already printed the cause
        how = "the options of spark-submit" if submitted() else f"--master {options.master} and --memory {options.memory}"
        messages.error(f"Spark does not start with {how}: {(str(error) or repr(error)).splitlines()[0]}")
        return None
    finally:
        for number in _ENDING:
            signal.signal(number, partial(_end_at_once, messages, stays))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _fetch(options: argparse.Namespace, messages: Messages) -> bool:
    """Fetch new lines of the ledger's topic, if `--kafka` is given. False after an error."""
    if not options.kafka:
        return True
    from gateway.reports.job.topic import TopicError, fetch_topic

    try:
        fetch_topic(options.kafka, options.topic or _TOPIC, Path(options.events), options.kafka_properties, messages.progress)
    except TopicError as error:
        messages.error(str(error))
        return False
    return True


def _end_at_once(messages: Messages, stays: bool, number: int, _: object) -> None:
    """Exit at once. PySpark's own handler, or an exception, would call Java in the middle of another call.

    A signal is the ordinary end of a process that stays.
    """
    messages.error("interrupted; the finished hours are saved, and the next run continues after them")
    os._exit(OK if stays else 128 + number)  # Java ends with this process


def main() -> int:
    """The entry point of `python -m gateway.reports` and of the script for spark-submit."""
    parser = argparse.ArgumentParser(
        prog="weir report", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    return run(parser.parse_args(sys.argv[1:]))


def _hour(of_whole_day: int, text: str) -> Hour:
    try:
        return parsed(text, of_whole_day)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a day or an hour of the calendar: write it as 2026-11-21 or 2026-11-21T15 (UTC, hours from 00 to"
            " 23)"
        ) from None


def _servers(text: str) -> str:
    for server in text.split(","):
        host, _, port = server.strip().rpartition(":")
        if not (host and 0 < (whole_number(port) or 0) <= MAX_PORT):
            raise argparse.ArgumentTypeError(f"{server[:80]!r} is not a broker's address: write HOST:PORT, several with commas")
    return text


def _interval(text: str) -> int:
    """Seconds."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([smhd])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 15m, 1h or 1d")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1: write 1 or more")
    return number


def _memory(text: str) -> str:
    if re.fullmatch(r"[1-9][0-9]*[kmgt]", text, re.IGNORECASE) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 3g or 800m")
    if int(text[:-1]) << _SHIFTS[text[-1].lower()] < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text} is too little for Spark: write 512m or more")
    return text
