"""`weir report`: its options, what has to be installed, and how it tells what it does. Needs no PySpark until it runs."""

import argparse
import datetime as dt
import os
import re
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from gateway.reports.job.period import Period, first_hour, last_hour

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

ABOUT = """\
Reads the throttle ledger and says who was throttled, by which quota, since when, who suffered and what limit would have been
right. Makes ten reports, each as a folder of Parquet, the same as CSV, and one page (report.html) that needs nothing else.

Every hour's events are read once: their aggregates are kept in OUT/_state, so that the next run reads only new hours and those
that got new files since. Lines that are no events are counted and kept aside in OUT/_rejected, with the reason.

Needs Java 17+ and:  pip install 'weir-gateway[reports]'
"""

EXAMPLES = """\
examples:
  weir report --events ./throttle-ledger --out ./report                     everything there is, on this machine
  weir report --events ./throttle-ledger --out ./report --from 2026-11-20   from that day on (UTC)
  weir report --events ... --out ... --from 2026-11-21T14 --to 2026-11-21T15   two hours
  weir report --kafka 127.0.0.1:9092 --events ./from-kafka --out ./report   fetches the ledger's topic into files first

on a cluster, with any path that Hadoop can read and write:
  spark-submit --master yarn "$(weir report --where)" --events hdfs:///weir/ledger --out hdfs:///weir/report
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `weir report`."""
    parser.add_argument("--events", metavar="PATH", help="the ledger's path: the folder that has date=.../hour=.../ in it")
    parser.add_argument("--out", metavar="DIR", help="where the reports and the kept aggregates go; made if it isn't there")
    parser.add_argument(
        "--from", dest="first", type=_first, metavar="TIME", help="2026-11-20 or 2026-11-20T15, UTC; that hour is included"
    )
    parser.add_argument("--to", dest="last", type=_last, metavar="TIME", help="the same; that day or hour is included")
    spark = parser.add_argument_group("Spark (under spark-submit its own options are used instead)")
    spark.add_argument(
        "--master", default="local[*]", metavar="URL", help="where to run (default: local[*], all cores of this machine)"
    )
    spark.add_argument("--memory", type=_memory, default="3g", metavar="SIZE", help="Java's heap on this machine (default: 3g)")
    spark.add_argument(
        "--batch-hours", type=_positive, default=24, metavar="N", help="new hours that are read together (default: 24)"
    )
    spark.add_argument("--skip-unreadable", action="store_true", help="pass over files that can't be read, instead of stopping")
    kafka = parser.add_argument_group("from the ledger's Kafka topic")
    kafka.add_argument(
        "--kafka", metavar="HOST:PORT,...", help="fetch what is new in the topic into files under --events first"
    )
    kafka.add_argument("--topic", default="__weir_throttles", help="the ledger's topic (default: __weir_throttles)")
    kafka.add_argument(
        "--kafka-properties",
        type=Path,
        metavar="FILE",
        help="security.protocol, sasl.* and ssl.* as `weir report` reads them: see README",
    )
    parser.add_argument("--quiet", action="store_true", help="tell nothing while it runs")
    parser.add_argument(
        "--where", action="store_true", help="print the path of the script for spark-submit, and do nothing else"
    )


def run(options: argparse.Namespace) -> int:
    """Make the reports; returns the exit code."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if options.where:
        Console(soft_wrap=True, highlight=False, markup=False).print(Path(__file__).parents[1] / "__main__.py")
        return OK
    for option in ("events", "out"):
        if getattr(options, option) is None:
            errors.print(f"weir report: --{option} is missing; see weir report --help")
            return USAGE
    if options.first and options.last and options.first > options.last:
        errors.print("weir report: --from is after --to, so that no hour is between them; give the earlier time to --from")
        return USAGE
    lacking = what_is_lacking()
    if lacking is not None:
        errors.print(f"weir report: {lacking}")
        return FAILED
    return _run(options, errors)


def what_is_lacking() -> str | None:
    """What has to be installed before a report can be made, None if nothing."""
    absent = [name for name in ("pyspark", "plotly") if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed; pip install 'weir-gateway[reports]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin/java").exists()):
        return "no Java found; install a JDK 17 or newer (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    return None


def _run(options: argparse.Namespace, errors: Console) -> int:
    from gateway.reports.job.overview import overview
    from gateway.reports.job.page import page, write_text
    from gateway.reports.job.refresh import NothingToReportError, refresh, unreadable
    from gateway.reports.job.session import is_small, spark_session
    from gateway.reports.job.write import write_reports

    began = dt.datetime.now(dt.UTC)

    def tell(text: str) -> None:
        if not options.quiet:
            seconds = (dt.datetime.now(dt.UTC) - began).total_seconds()
            errors.print(f"{seconds:6.1f} s  {text}")

    def interrupted(*_: object) -> None:
        """End at once. PySpark's own handler, and an exception, would talk to Java in the middle of what they interrupt."""
        errors.print("weir report: interrupted; the hours that were read are kept, and the next run goes on from there")
        os._exit(INTERRUPTED)  # Java ends with this process

    if options.kafka:
        if "://" in options.events:
            errors.print(f"weir report: with --kafka, --events {options.events} has to be a folder of this machine")
            return USAGE
        from gateway.reports.job.topic import TopicError, fetch_topic

        try:
            fetch_topic(options.kafka, options.topic, Path(options.events), options.kafka_properties, tell)
        except TopicError as error:
            errors.print(f"weir report: {error}")
            return FAILED
    tell("starting Spark")
    # Put off until Spark is up: Java inherits that, and no child of its own is ended by Ctrl-C in the middle of its work.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        spark = spark_session(
            options.master, options.memory, skip_unreadable=options.skip_unreadable, small=is_small(options.events)
        )
    except Exception as error:  # of PySpark's or Py4J's: what Java has died of stands above, in its own words
        errors.print(
            f"weir report: Spark does not start with --master {options.master} and --memory {options.memory}: "
            f"{(str(error) or repr(error)).splitlines()[0]}"
        )
        return FAILED
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        out = options.out.rstrip("/")
        found = refresh(spark, options.events, out, Period(options.first, options.last), options.batch_hours, tell)
        reports = write_reports(spark, found.tables, out, tell)
        top = overview(found.tables, len(found.hours))
        write_text(spark, f"{out}/report.html", page(found, top, reports, dt.datetime.now(dt.UTC)))
    except NothingToReportError as error:
        errors.print(f"weir report: {error}")
        return FAILED
    except Exception as error:
        reason = unreadable(error)
        if reason is None:
            raise
        errors.print(f"weir report: {reason}")
        return FAILED
    finally:
        spark.stop()
    seconds = (dt.datetime.now(dt.UTC) - began).total_seconds()
    read = f"{found.new_events:,} events of {found.new_hours} hours read"
    tell(f"{read}, {found.rejected:,} bad lines, {seconds:.0f} s in all")
    Console(soft_wrap=True, highlight=False, markup=False).print(f"{out}/report.html")
    return OK


def main() -> int:
    """The script for spark-submit, and `python -m gateway.reports`."""
    parser = argparse.ArgumentParser(
        prog="weir report", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    return run(parser.parse_args(sys.argv[1:]))


def _first(text: str) -> tuple[dt.date, int]:
    try:
        return first_hour(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 2026-11-21 nor 2026-11-21T15: {error}") from None


def _last(text: str) -> tuple[dt.date, int]:
    try:
        return last_hour(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 2026-11-21 nor 2026-11-21T15: {error}") from None


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _memory(text: str) -> str:
    if re.fullmatch(r"[1-9][0-9]*[kmgt]", text, re.IGNORECASE) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 3g or 800m")
    return text
