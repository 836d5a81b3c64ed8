"""An archive of Java's classes (AppCDS) in the user's cache. docs/decisions/025 has what it saves.

Java writes the archive when it exits. An archive fits one version of Java and of Spark's jars: their hash is in its name. Java
ignores an archive that does not fit or is incomplete, so none can make a run fail.
"""

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

import pyspark

from gateway.reports.job.command import java_file, submitted
from gateway.reports.job.java_process import JavaProcess

_PREFIX: Final = "classes-"
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Java otherwise warns of each class that it can't archive, and of an archive that does not fit."""
_READ: Final = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""Java otherwise moves the archive to a random address, and changes all of its pages for that."""
_UNUSED_SECONDS: Final = 30 * 86_400.0
"""An archive that no run has read for so long is deleted."""
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
        return f'-XX:SharedArchiveFile="{self.path}" {_READ} {_QUIET}' if self.path.exists() else ""

    @property
    def _unfinished(self) -> Path:
        return self.path.with_suffix(f".part{os.getpid()}")

    def store(self) -> None:
        """End Java, and keep the archive that it writes."""
        java = JavaProcess.of_spark().process
        if java is None or java.stdin is None:
            return
        java.stdin.close()
        try:
            java.wait(_PATIENCE)
            self._unfinished.replace(self.path)
        except (OSError, TimeoutExpired):
            return


def class_archive(*, worth: bool) -> ClassArchive | None:
    """The archive of this user's runs, or None if this process does not start Java, or has no folder for an archive.

    If it is missing, this run writes it if it is `worth` some seconds. Deletes old archives of other versions.
    """
    java, folder = java_file(), _folder()
    if submitted() or java is None or folder is None or '"' in str(folder):
        return None
    jars = Path(pyspark.__file__).parent / "jars"
    versions = (pyspark.__version__, *(f"{file}:{file.stat().st_mtime_ns}" for file in (jars, java)))
    key = hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]
    path = folder / f"{_PREFIX}{key}.jsa"
    is_due = worth and not path.exists()
    try:
        if is_due:
            folder.mkdir(parents=True, exist_ok=True)
        elif path.exists():
            path.touch()
        for other in folder.glob(f"{_PREFIX}*"):
            if other.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                other.unlink(missing_ok=True)
    except OSError:
        return None
    return ClassArchive(path, is_due)


def _folder() -> Path | None:
    """The cache folder of the XDG Base Directory Specification; None for a user without a home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "weir").absolute()
    except RuntimeError:
        return None
