"""The engine, counters and view of a gateway, with a constant clock."""

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import clock, open_files
from gateway.admin.metrics.scrape import Scrape
from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig
from gateway.config.load import parse_config
from gateway.feature import Feature
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionSlot
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.steps import Steps, at_once
from loadtest.testkit.certificates import Authority
from tests.gateway.quotas.engines import bucket_of

CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 21250, broker_ports: 21251-21260}]
quotas:
  entities:
    - {user: "<default>", client-id: "<default>", producer_byte_rate: 100000}
admin: {port: 21201}
"""
NOW = 1_000.0
WALL = 1_767_225_600.25  # 2026-01-01T00:00:00.250Z


def scraped(view: AdminView) -> Scrape:
    return Scrape.of(view, at_once(view.engine.rows(view.monotonic())), at_once(view.reports()))


@pytest.fixture
def limit_files() -> Iterator[Callable[[int], None]]:
    """A function that sets the limit of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(files: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
        open_files.first_beyond_clients.cache_clear()
        open_files.first_beyond_brokers.cache_clear()

    yield limit
    limit(before[0])


@pytest.fixture
def take_files() -> Iterator[Callable[[int], Callable[[], None]]]:
    """A function that takes all file descriptors below a number, and returns another that gives them back."""
    held: list[int] = []

    def give_back() -> None:
        while held:
            os.close(held.pop())

    def take(first: int) -> Callable[[], None]:
        held.append(os.open(os.devnull, os.O_RDONLY))
        while held[-1] < first - 1:
            held.append(os.open(os.devnull, os.O_RDONLY))
        return give_back

    yield take
    give_back()


@pytest.fixture
def next_file() -> int:
    """The lowest file descriptor that is free."""
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    return probe


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def claims() -> Iterator[int]:
    """The file in which processes claim ports, see `PortClaims`."""
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


@pytest.fixture
def config_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file `weir.yaml` with the text `CONFIG` of the test's module."""
    path = tmp_path / "weir.yaml"
    path.write_text(request.module.CONFIG)
    return path


@pytest.fixture
def engine() -> QuotaEngine:
    """alice/etl is 3 s over her produce quota, bob uses a fifth of his, and both fetch without one."""
    limits = {"producer_byte_rate": 100_000}
    engine = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(DEFAULT, DEFAULT), limits),)), NOW)
    alice = bucket_of(engine, "produce", "alice", "etl", NOW)
    assert alice.charge(1_300_000, NOW) == (pytest.approx(3.0), True)
    alice.note_early(0.5)
    alice.note_early(1.5)
    bucket_of(engine, "produce", "bob", "app", NOW).charge(200_000, NOW)
    bucket_of(engine, "fetch", "bob", "app", NOW).charge(70_000, NOW)
    return engine


@pytest.fixture
def counters() -> Counters:
    counters = Counters()
    counters.requests[0], counters.requests[1] = 5, 7
    # 100 us, 1 ms and 100 s, as slots of powers of two.
    for slot in (7, 10, 27):
        counters.latency[0][slot] += 1
    counters.latency_seconds[0] = 100.0011
    counters.connections, counters.connections_total, counters.muted = 3, 4, 1
    counters.rejected["max_per_ip"] += 2
    counters.protocol_errors["invalid_length"] += 1
    counters.authentications["SCRAM-SHA-256"] += 3
    counters.authentication_failures["refused"] += 2
    return counters


@pytest.fixture
def effective() -> EffectiveConfig:
    return EffectiveConfig(parse_config(CONFIG, source="weir.yaml"), loaded_at=WALL, outlet=Outlet())


class Readiness:
    """A gateway's readiness: `reason` is None while it is ready."""

    reason: str | None = None

    def __call__(self) -> str | None:
        return self.reason


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


def reported(feature: type[Feature[Any]], report: object) -> Feature[Any]:
    """A feature whose report is the given one."""

    class Fixed(feature):
        def __init__(self) -> None:
            """Needs nothing."""

        def report(self) -> object:
            return report

        def report_in_steps(self) -> Steps[object | None]:
            return Feature.report_in_steps(self)

    return Fixed()


@pytest.fixture
def limiter(engine: QuotaEngine) -> ConnectionQuotasFeature:
    """Three connections of a listener that may have ten, none of one that may have any number."""
    limits = ConnectionLimits(1, {}, AcceptLimits(), {"clients": AcceptLimits(max_connections=10), "others": AcceptLimits()})
    limiter = ConnectionQuotasFeature(limits, engine, Outlet())
    for number in range(3):
        assert isinstance(limiter.quotas.accept("clients", f"10.0.0.{number}", clock.monotonic()), ConnectionSlot)
    return limiter


@pytest.fixture
def view(
    engine: QuotaEngine, limiter: ConnectionQuotasFeature, counters: Counters, effective: EffectiveConfig, readiness: Readiness
) -> AdminView:
    return AdminView(engine, counters, effective, readiness, [limiter], monotonic=lambda: NOW, wall=lambda: WALL)


@contextmanager
def full_disk(size: int = 4096) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes. As a fixture, it would hold for pytest's own output as well."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
