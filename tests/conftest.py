"""Fixtures for real Kafka clusters and gateways, each started when a test first needs it."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadfile import LoadFileScheduling

from gateway.version import weir_build
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.kafka.node import QUICK_START
from protocol import framing
from tests.weir_process import Weir

# Without bytecode files, each gateway that a test starts compiles all its sources again: 0.3 s of CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests start many brokers, and none of them long enough for the optimising compiler.
os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", QUICK_START)

# The duration of an example depends on the machine, not only on the code.
settings.register_profile("weir", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weir")


def pytest_configure() -> None:
    """Stop unless the tests import the sources, or the compiled build where WEIR_BUILD=compiled asks for it."""
    wanted = os.environ.get("WEIR_BUILD", "interpreted")
    if weir_build() != wanted:
        pytest.exit(f"the tests import {framing.__file__}, which is not {wanted} — delete extensions beside their sources", 4)


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder into which the present user can't look. root is another user for the time of the test."""
    with TemporaryDirectory(prefix="weir-closed-") as name:
        Path(name).chmod(0o755)
        folder = Path(name, "closed")
        folder.mkdir(mode=0)
        user = os.geteuid()
        os.seteuid(user or _NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(user)


_NOBODY = 65_534


NEEDS_PROCESSES = {"kafka", "kafka3", "weir", "weir3", "start_weir"}

LONGEST_FIRST = (
    "test_clients_java.py", "test_clients_kafka_python.py", "test_clients_kcat.py", "test_clients_librdkafka.py",
    "test_resilience.py", "test_clients_aiokafka.py", "test_sharing.py", "test_rolling_upgrade.py", "test_volumes.py",
    "test_controller_mutations.py", "test_topic_quotas.py", "test_sasl_clients.py", "test_long_mutes.py",
    "test_recent_usage.py", "test_several_workers.py", "test_job.py", "test_simulation.py",
    "test_supervisor.py",
)  # fmt: skip
"""The files that take longest. A worker that began one of them last would finish minutes after the others."""


ONE_SPARK_SESSION = [
    f"tests/gateway/reports/test_{name}.py" for name in ("job", "reports", "report_run", "what_if", "page", "demo", "folders")
]
THREE_BROKERS = [
    *(f"tests/broker/test_clients_{name}.py" for name in ("java", "kafka_python", "kcat", "librdkafka", "aiokafka")),
    *(f"tests/broker/test_{name}.py" for name in ("init", "moving_quotas", "broker_scope")),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `process` that ask for a fixture of `NEEDS_PROCESSES` or are marked `broker` or `spark`.

    Long files come first, then all others that start processes, so that the workers of pytest-xdist finish together.
    """
    slow_files = set()
    for item in items:
        needs = NEEDS_PROCESSES.intersection(getattr(item, "fixturenames", ()))
        if needs or item.get_closest_marker("broker") or item.get_closest_marker("spark"):
            item.add_marker("process")
        if item.get_closest_marker("process"):
            slow_files.add(item.path)

    def rank(item: pytest.Item) -> int:
        listed = LONGEST_FIRST.index(item.path.name) if item.path.name in LONGEST_FIRST else len(LONGEST_FIRST)
        return listed + (item.path not in slow_files)

    items.sort(key=rank)


class ByFile(LoadFileScheduling):
    """Gives whole files to the workers. One worker gets the files that share a Spark session, and one those of `kafka3`."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((together[0] for together in (ONE_SPARK_SESSION, THREE_BROKERS) if file in together), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Exempt the 10 000 collected tests from garbage collection: otherwise, each full collection takes 0.1 s of CPU."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that starts a process fails unless it is marked `process`, so that `make quick` stays quick."""
    if item.get_closest_marker("process"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", _refuse)
        return (yield)


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("this test starts a process: mark it with pytest.mark.process")


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
