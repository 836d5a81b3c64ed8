"""Finds Kafka's jars, and builds command lines for its Java classes."""

import os
import re
from pathlib import Path

from loadtest.testkit.paths import CHECKOUT

_LOGGING = Path(__file__).resolve().parent
CLASS_ARCHIVE = CHECKOUT.joinpath(".cache", "kafka", "classes.jsa").resolve()
"""The classes of a node, parsed and verified: see class_archive.py. A JVM of another version ignores it."""


class JarsMissingError(RuntimeError):
    """Kafka's jars are missing. The message has the expected folder and the remedy."""


def libs() -> Path:
    """The folder of Kafka's jars: WEIR_KAFKA_LIBS, or the checkout's .cache/kafka/libs. Raises `JarsMissingError`."""
    remedy = "run `make setup`, or set WEIR_KAFKA_LIBS to the libs folder of Kafka 4.3"
    return _with_jars(Path(os.environ.get("WEIR_KAFKA_LIBS") or CHECKOUT / ".cache" / "kafka" / "libs"), remedy)


def broker_libs() -> Path:
    """The folder of the brokers' jars: WEIR_BROKER_LIBS for another version, else `libs`. Raises `JarsMissingError`."""
    folder = os.environ.get("WEIR_BROKER_LIBS")
    return _with_jars(Path(folder), "set WEIR_BROKER_LIBS to the libs folder of a Kafka") if folder else libs()


def broker_version() -> tuple[int, ...]:
    """The brokers' release, such as (4, 3, 0), by the name of their jar of clients. Raises `JarsMissingError`."""
    jar = min(broker_libs().glob("kafka-clients-*.jar"))
    return tuple(int(number) for number in re.findall(r"\d+", jar.stem))


def _with_jars(folder: Path, remedy: str) -> Path:
    if not any(folder.glob("kafka-clients-*.jar")):
        raise JarsMissingError(f"no kafka-clients-*.jar in {folder}: {remedy}")
    return folder.resolve()


def java(*options: str, logging: str, jars: Path | None = None) -> list[str]:
    """The start of a command line for one of Kafka's classes: `java`, JVM options and class path.

    `logging` is `node` or `tool`, and selects one of the log4j2-*.properties of this folder. `jars` is the folder of the jars,
    in place of `libs`.
    """
    configuration = _LOGGING / f"log4j2-{logging}.properties"
    # The JVM would warn on stdout if another JVM had made the archive.
    archive = [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:disable"] if CLASS_ARCHIVE.exists() else []
    return ["java", *archive, *options, f"-Dlog4j2.configurationFile={configuration}", "-cp", f"{jars or libs()}/*"]
