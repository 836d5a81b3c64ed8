"""Clusters with a small in-memory file system for each broker, to fill disks quickly."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.testkit.kafka.cluster import KafkaCluster

_PROPERTIES = {
    # Deleted records free the disk within two seconds, and compaction runs as often.
    "log.segment.bytes": str(1024 * 1024),
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
}


class CannotMountError(RuntimeError):
    """A file system can't be mounted here, most likely because the user is not root."""


@contextmanager
def _small_volume(path: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes in memory at `path`. Raises `CannotMountError`."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "weir", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        raise CannotMountError(f"a small file system can't be mounted (not root?): {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def cluster_on_small_volumes(directory: Path, brokers: int, size: int) -> Iterator[KafkaCluster]:
    """A running cluster with `size` bytes for each broker's logs. Raises `CannotMountError`."""
    with ExitStack() as stack:
        cluster = KafkaCluster(directory, brokers, _PROPERTIES)
        for node in cluster.brokers:
            stack.enter_context(_small_volume(node.directory / "data", size))
        yield stack.enter_context(cluster)


def used_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bavail) * found.f_frsize
