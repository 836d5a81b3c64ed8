"""Makes `CLASS_ARCHIVE`, which halves the time until a node or a tool starts.

python -m loadtest.testkit.kafka.class_archive
"""

import os
import sys
import tempfile
from pathlib import Path

from loadtest.testkit.kafka.cluster import KafkaCluster
from loadtest.testkit.kafka.jars import CLASS_ARCHIVE
from loadtest.testkit.kafka.node import QUICK_START, NodeError


def make_class_archive() -> None:
    """Start a node and stop it; its JVM then writes the archive. Raises NodeError, JarsMissingError."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    new = CLASS_ARCHIVE.with_suffix(".new")
    os.environ["KAFKA_JVM_PERFORMANCE_OPTS"] = f"{QUICK_START} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name)) as cluster:
        cluster.brokers[0].stop()
    if not new.exists():
        raise NodeError(f"the JVM wrote no class archive to {new}: see `java -XX:ArchiveClassesAtExit`")
    new.replace(CLASS_ARCHIVE)


def main() -> int:
    """Returns 1 if the JVM makes no archive. Everything works without it, but slower."""
    try:
        make_class_archive()
    except NodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
