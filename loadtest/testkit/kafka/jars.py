"""Where Kafka's jars are: the one place that knows."""

import os
from pathlib import Path

from loadtest.testkit.paths import CHECKOUT

_LOGGING = Path(__file__).resolve().parent


class JarsMissingError(RuntimeError):
    """Kafka's jars are not where they are looked for; the message says where that is and what fetches them."""


def libs() -> Path:
    """Return the folder of Kafka's jars: the environment's WEIR_KAFKA_LIBS, else the checkout's .cache/kafka/libs.

    Raises JarsMissingError where that folder holds no kafka-clients jar.
    """
    folder = Path(os.environ.get("WEIR_KAFKA_LIBS") or CHECKOUT / ".cache" / "kafka" / "libs")
    if not any(folder.glob("kafka-clients-*.jar")):
        remedy = "run `make setup`, or point WEIR_KAFKA_LIBS at the libs of a Kafka 4.3"
        raise JarsMissingError(f"no kafka-clients-*.jar in {folder}: {remedy}")
    return folder


def java(*options: str, logging: str) -> list[str]:
    """Return the start of a command line for a class of Kafka's: `java`, the JVM's options and the class path.

    `logging` is `node` or `tool`: which log4j2-*.properties of this folder applies.
    """
    configuration = _LOGGING / f"log4j2-{logging}.properties"
    return ["java", *options, f"-Dlog4j2.configurationFile={configuration}", "-cp", f"{libs()}/*"]
