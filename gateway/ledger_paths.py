"""The names of the ledger's files. Imports nothing of the gateway, because the Spark reports read the files.

Files are `date=YYYY-MM-DD/hour=HH/NAME` under the ledger's path. Date and hour (UTC) are those of the events' `time_ms`; NAME
is `file_name(...)`. The format is gzip, which Spark reads everywhere without native libraries. Spark reads a gzip file in one
task, so a ledger should begin a new file after some 32 MiB of compressed lines. A file appears whole under its name and never
changes: write `in_progress_name(...)`, then rename it. Spark ignores names that begin with a dot or an underscore. An hour may
get more files at any time; then a report computes this hour again.
"""

from datetime import UTC, datetime


def partition(time_ms: int) -> str:
    """The folder of an event's file under the ledger's path: `date=2026-11-21/hour=03`."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("date=%Y-%m-%d/hour=%H")


def file_name(gateway: str, begun_ms: int, sequence: int) -> str:
    """A finished file's name: `weir-GATEWAY-20261121T031500-000007.jsonl.gz`. Never used twice by a gateway."""
    begun = datetime.fromtimestamp(begun_ms // 1000, UTC).strftime("%Y%m%dT%H%M%S")
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in gateway)
    return f"weir-{safe}-{begun}-{sequence:06d}.jsonl.gz"


def in_progress_name(finished: str) -> str:
    """A file's name until it is whole: Spark and the reports pass over it."""
    return f"_{finished}.part"
