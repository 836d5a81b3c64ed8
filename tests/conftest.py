"""The real things that tests run against: Kafka clusters and the gateway, each started when a test first asks for it."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from loadtest.testkit.kafka import KafkaCluster
from tests.weir_process import Weir

# Where the machine forbids bytecode files, each gateway that a test starts would compile all its sources again: 0.3 s of CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something of the machine, not of the code.
settings.register_profile("weir", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weir")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker, shared by all tests: they use topics and groups of their own and leave it running."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, replication factor 3, min.insync.replicas 2; shared like `kafka`."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka3"), 3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def weir(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway without quotas in front of `kafka`, shared by all tests."""
    with Weir(tmp_path_factory.mktemp("weir"), kafka.bootstrap_servers) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def weir3(kafka3: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway without quotas in front of `kafka3`, shared by all tests."""
    with Weir(tmp_path_factory.mktemp("weir3"), kafka3.bootstrap_servers) as gateway:
        yield gateway


@pytest.fixture
def start_weir(tmp_path: Path) -> Iterator[Callable[..., Weir]]:
    """`start_weir(bootstrap_servers, quotas={...}, ...)`: a gateway for one test, its config's sections as keywords.

    `listener` has keys for its listener; `wait` is the admin page that has to answer before it is returned.
    """
    with ExitStack() as running:

        def start(bootstrap_servers: str, listener: Any = None, wait: str = "/readyz", **config: Any) -> Weir:
            return running.enter_context(Weir(tmp_path / "weir", bootstrap_servers, config, listener, wait))

        yield start


@pytest.fixture(scope="session")
def kcat() -> str:
    """The kcat program, or a skipped test."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not on the PATH and `make setup` could not fetch it: install Debian's package kcat")
    return program
