"""Spark's Java process, and its unexpected end."""

import time
from dataclasses import dataclass
from subprocess import Popen, TimeoutExpired
from typing import Final, Self

from pyspark import SparkContext

_END_SECONDS: Final = 2.0
"""The connections of a process close shortly before the process has ended."""


class JavaEndedError(Exception):
    """Java has ended, so Spark can't go on. The message says what to do."""


@dataclass(frozen=True)
class JavaProcess:
    """`process` is None under spark-submit: there, Python runs below Java."""

    process: "Popen[bytes] | None"

    @classmethod
    def of_spark(cls) -> Self:
        return cls(getattr(SparkContext._gateway, "proc", None))

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def wait(self, seconds: float = _END_SECONDS) -> None:
        """Wait for so long. Raises `JavaEndedError` as soon as Java has ended."""
        if self.process is None:
            time.sleep(seconds)
            return
        try:
            code = self.process.wait(seconds)
        except TimeoutExpired:
            return
        reason = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        raise JavaEndedError(
            f"Java {reason}, so weir report ends too. The finished hours are saved: start it again."
            " If the system had too little memory (signal 9), give it more, or give --memory less"
        )
