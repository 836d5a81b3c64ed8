"""An archive of Java's classes (AppCDS) beside the aggregates. docs/decisions/025 has what it saves.

Java writes the archive when it exits. An archive fits one version of Java and of Spark's jars: their hash is in its name. Java
ignores an archive that does not fit or is incomplete, so none can make a run fail.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

import pyspark
from pyspark import SparkContext

from gateway.reports.job.command import submitted

_PREFIX: Final = "classes-"
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Java otherwise warns of each class that it can't archive, and of an archive that does not fit."""
_PATIENCE: Final = 600.0
"""The most seconds that Java gets to write the archive."""


@dataclass(frozen=True)
class ClassArchive:
    """The archive at `path`. With `is_due`, this run writes it."""

    path: Path
    is_due: bool

    @property
    def options(self) -> str:
        """The options of Java that read the archive or write it at the end; none without an archive."""
        if self.is_due:
            return f'-XX:ArchiveClassesAtExit="{self._unfinished}" {_QUIET}'
        return f'-XX:SharedArchiveFile="{self.path}" {_QUIET}' if self.path.exists() else ""

    @property
    def _unfinished(self) -> Path:
        return self.path.with_suffix(f".part{os.getpid()}")

    def store(self) -> None:
        """End Java, and keep the archive that it writes. Other archives are deleted, and those of runs that were killed."""
        java = getattr(SparkContext._gateway, "proc", None)
        if java is None:
            return
        java.stdin.close()
        try:
            java.wait(_PATIENCE)
            self._unfinished.replace(self.path)
        except (OSError, TimeoutExpired):
            return
        for other in self.path.parent.glob(f"{_PREFIX}*"):
            if other != self.path:
                other.unlink(missing_ok=True)


def class_archive(out: str, *, worth: bool) -> ClassArchive | None:
    """The archive of the runs with the same `out`, or None if this process does not start Java with a local `out`.

    If it is missing, this run writes it if it is `worth` some seconds.
    """
    java = _java()
    if submitted() or "://" in out or '"' in out or java is None:
        return None
    state = Path(out).absolute() / "_state"
    jars = Path(pyspark.__file__).parent / "jars"
    versions = (pyspark.__version__, *(f"{file}:{file.stat().st_mtime_ns}" for file in (jars, java)))
    key = hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]
    path = state / f"{_PREFIX}{key}.jsa"
    is_due = worth and not path.exists()
    if is_due:
        state.mkdir(parents=True, exist_ok=True)
    return ClassArchive(path, is_due)


def _java() -> Path | None:
    """The file of Java's version that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).exists() else None
