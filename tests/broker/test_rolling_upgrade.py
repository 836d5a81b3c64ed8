"""A rolling upgrade from the last release: gateways of both versions share quotas, and each reads the other's files."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from gateway import clock
from gateway.events import ThrottleEvent
from loadtest.testkit.compiled_build import environment
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.request_client import RequestClient
from tests.broker.test_ledger_recording import written
from tests.broker.test_quota_api import alter, described_by, parts
from tests.broker.test_recent_usage import BURST, LIMIT, RECORD, WINDOW, produce, tokens
from tests.broker.topics import create_topic
from tests.last_release import LAST_RELEASE
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

OLD, NEW = LAST_RELEASE.version, "present"
NEW_KEY = "request_rates.Metadata"
"""A quota that the last release does not know."""
GROUPS = {"groups": [{"name": "jobs", "match": [{"client-id": "etl"}], "producer_byte_rate": 10_000_000}]}
"""Only the present version knows groups."""
THRESHOLD = "bytes.in.per.sec.threshold"
TIMEOUT = 60.0

VOLUME_USAGE = """
import importlib, sys
task = sys.argv[1]
limits, message = (importlib.import_module(f"gateway.features.volume_quotas.{name}") for name in ("limits", "usage_message"))
def limit(kind, level):
    return limits.Limit(limits.LimitType(kind), level)
if task == "write":
    hard, soft = limit("MinFreePercentage", 5.0), limit("ConsumedSpace", 900.0)
    volumes = (limits.Volume("/data-1", 1000, 400), limits.Volume("/data-2", 2000, 0, hard=limit("MinFreeBytes", 10.0)))
    print(message.encode_usage(message.VolumeUsage(3, 1_700_000_000.125, hard, soft, volumes))[1].decode())
else:
    print(message.parse_usage(3, sys.stdin.buffer.read()))
"""

OLD_READER = """
import gzip, pathlib, sys
from gateway.events import from_line
for file in pathlib.Path(sys.argv[1]).rglob("weir-*.jsonl.gz"):
    for line in gzip.decompress(file.read_bytes()).splitlines():
        print(type(from_line(line)).__name__)
"""

Start = Callable[..., Weir]


@pytest.fixture(scope="session")
def old_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the last release, which run as sources."""
    folder = tmp_path_factory.mktemp("last-release")
    LAST_RELEASE.unpack(folder, "gateway", "protocol")
    return folder


@pytest.fixture
def start(kafka: KafkaCluster, tmp_path: Path, old_packages: Path) -> Iterator[Start]:
    """`start(version, name, **sections)`: a running gateway. Gateways of one name have one folder, and so the same files.

    The present version has a group besides.
    """
    made: list[Weir] = []

    def one(version: str, name: str, **config: Any) -> Weir:
        packages = old_packages if version == OLD else None
        if version == NEW:
            config["quotas"] = config.get("quotas", {}) | GROUPS
        gateway = Weir(tmp_path / name, kafka.bootstrap_servers, config, packages=packages)
        made.append(gateway)
        gateway.start()
        return gateway

    yield one
    for gateway in made:
        if gateway.process.poll() is None:
            gateway.stop()


def saved_of_peers(gateway: Weir) -> dict[tuple[str, str | None], float]:
    """The totals of peers by kind and group in the gateway's file of recent use."""
    lines = map(json.loads, gateway.config_file.with_name("weir.state.usage.jsonl").read_text().splitlines())
    return {(row["kind"], row.get("group")): row["total"] for line in lines for row in line.get("told", [])}


def topic_for(kafka: KafkaCluster) -> str:
    return create_topic(kafka.bootstrap_servers, f"upgraded-{uuid4().hex[:8]}", partitions=1)


def shared() -> dict[str, Any]:
    """A config of gateways that share their quotas with each other, and with no gateway of another test."""
    name = uuid4().hex[:8]
    return {
        "sharing": {"topic": f"usage-{name}", "quotas_topic": f"quotas-{name}"},
        "quota_admins": ["User:ANONYMOUS"],
        "state": {"usage_interval_ms": 200},
    }


def set_quota(gateway: Weir, client_id: str | None = None, group: str | None = None, **values: float | None) -> None:
    entity = parts(client_id=client_id) if group is None else parts(group=group)
    with RequestClient(gateway.bootstrap_servers) as client:
        assert alter(client, entity, **values)["error_code"] == 0


def set_threshold(gateway: Weir, topic: str, value: int) -> None:
    """As `kafka-configs.sh --entity-type topics` does."""
    change = ConfigEntry(THRESHOLD, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)


def threshold(gateway: Weir, topic: str) -> float | None:
    found: list[float | None] = [row["threshold"] for row in gateway.api("topics")["rows"] if row["topic"] == topic]
    return found[0] if found else None


def test_both_versions_share_the_use_of_a_quota(kafka: KafkaCluster, start: Start) -> None:
    topic = topic_for(kafka)
    config = shared() | {"quotas": {"window": WINDOW, "entities": [{"client-id": "etl", "producer_byte_rate": LIMIT}]}}
    old, new = start(OLD, "old", **config), start(NEW, "new", **config)
    wait_until(lambda: old.metric("weir_sharing_members") == new.metric("weir_sharing_members") == 2, "they know each other")
    began = clock.monotonic()
    used = 0
    for here, there in [(old, new), (new, old)]:
        for _ in range(4):
            produce(here, topic)
        used += 4 * RECORD
        wait_until(
            lambda peer=there, used=used: tokens(peer) <= BURST - used + LIMIT * (clock.monotonic() - began), "the peer's use"
        )
        # A peer's use is also presumed for a moment. Use that counts twice would be refilled after more than a minute only.
        wait_until(lambda peer=there, used=used: tokens(peer) >= BURST - used - RECORD, "no use is counted twice", 30.0)
    assert new.metric("weir_sharing_messages_skipped_total") == 0
    assert old.label_values("weir_sharing_messages_skipped_total", "reason") <= {"unknown_part"}, (
        "it skips only the group's use"
    )


def test_rollback_of_one_gateway_counts_no_use_twice(kafka: KafkaCluster, start: Start) -> None:
    """Gateways save their peers' use, here also of a group and of a kind that the last release does not know."""
    topic, config = topic_for(kafka), shared()
    quota = {"client-id": "etl", "producer_byte_rate": LIMIT}
    quotas = {"window": WINDOW, "entities": [{**quota, "request_rates": {"Produce": 50}}]}
    here, peer = start(NEW, "here", quotas=quotas, **config), start(NEW, "peer", quotas=quotas, **config)
    wait_until(lambda: here.metric("weir_sharing_members") == peer.metric("weir_sharing_members") == 2, "they know each other")
    for _ in range(5):
        produce(peer, topic)
    everything = {("produce", None), ("produce", "jobs"), ("request_rate.Produce", None)}
    wait_until(
        lambda: (saved := saved_of_peers(here)).keys() >= everything and saved["produce", None] >= 5 * RECORD,
        "the peer's use is saved",
    )
    here.stop()

    back = start(OLD, "here", quotas={**quotas, "entities": [quota]}, **config)
    began, before = clock.monotonic(), tokens(back)
    assert before < BURST - 3 * RECORD, "the peer's use is restored"
    for used in (RECORD, 2 * RECORD):
        produce(peer, topic)
        wait_until(lambda used=used: tokens(back) <= before - used + LIMIT * (clock.monotonic() - began), "the peer's next use")
    # Use that counts twice would be refilled after more than a minute only.
    wait_until(lambda: tokens(back) >= tokens(peer) - RECORD, "no use is counted twice", 30.0)
    assert back.metric("weir_task_restarts_total") == 0


def test_quotas_set_through_one_version_reach_the_other(kafka: KafkaCluster, start: Start) -> None:
    topic = topic_for(kafka)
    config = shared() | {"quotas": {"topics": {"total.bytes.in.per.sec.threshold": 1_000_000}}}
    old, new = start(OLD, "old", **config), start(NEW, "new", **config)

    set_quota(old, "from-old", producer_byte_rate=1_000.0)
    set_quota(new, group="jobs", producer_byte_rate=4_000.0)
    set_quota(new, "from-new", producer_byte_rate=2_000.0, **{NEW_KEY: 5.0})
    set_threshold(new, topic, 3_000)
    everything = {
        "client-id=from-old": {"producer_byte_rate": 1_000.0},
        "client-id=from-new": {"producer_byte_rate": 2_000.0, NEW_KEY: 5.0},
    }
    group = {"group=jobs": {"producer_byte_rate": 4_000.0}}
    wait_until(lambda: described_by(old) == everything, "the old version has both, and skips the group")
    wait_until(lambda: described_by(new) == everything | group, "the new version has all")
    assert old.metric("weir_api_quota_topic_skipped_total") >= 1
    wait_until(lambda: threshold(old, topic) == 3_000, "the topic's threshold reaches the old version")

    set_quota(old, "from-new", producer_byte_rate=2_500.0)
    everything["client-id=from-new"]["producer_byte_rate"] = 2_500.0
    wait_until(lambda: described_by(old) == everything, "a change by the old version keeps the key that it does not know")
    wait_until(lambda: described_by(new) == everything | group, "the change reaches the new version")

    third = start(NEW, "third", **config)
    assert described_by(third) == everything | group
    wait_until(lambda: threshold(third, topic) == 3_000, "the threshold of the topic is kept")


def test_restart_with_another_version_keeps_quotas_and_use(kafka: KafkaCluster, start: Start) -> None:
    """An upgrade, a downgrade and a second upgrade of one gateway, whose files each version writes."""
    topic = topic_for(kafka)
    config = {
        "quota_admins": ["User:ANONYMOUS"],
        "quotas": {"window": WINDOW, "topics": {"total.bytes.in.per.sec.threshold": 1_000_000}},
    }
    quotas = {"client-id=etl": {"producer_byte_rate": float(LIMIT)}}
    group = {"group=jobs": {"producer_byte_rate": 10_000_000.0}}
    old = start(OLD, "gateway", **config)
    set_quota(old, "etl", producer_byte_rate=float(LIMIT))
    while produce(old, topic) == 0:
        pass
    old.stop()

    def restarted(version: str, expected: dict[str, dict[str, float]]) -> Weir:
        gateway = start(version, "gateway", **config)
        assert described_by(gateway) == expected
        # The use is read before the start. A Produce here would wait for the end of the debt.
        assert tokens(gateway) < BURST / 2, "the new process gives no second burst"
        return gateway

    upgraded = restarted(NEW, quotas | group)
    set_quota(upgraded, "fast", **{NEW_KEY: 9.0})
    quotas["client-id=fast"] = {NEW_KEY: 9.0}
    set_quota(upgraded, group="jobs", producer_byte_rate=4_000_000.0)
    group["group=jobs"]["producer_byte_rate"] = 4_000_000.0
    set_threshold(upgraded, topic, 3_000)
    upgraded.stop()

    downgraded = restarted(OLD, quotas)
    set_quota(downgraded, "more", producer_byte_rate=1_000_000.0)
    quotas["client-id=more"] = {"producer_byte_rate": 1_000_000.0}
    downgraded.stop()

    upgraded = restarted(NEW, quotas | group)
    wait_until(lambda: threshold(upgraded, topic) == 3_000, "the threshold survives the old version")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_explain_reads_gateways_of_the_other_version(start: Start, old_packages: Path, version: str) -> None:
    gateway = start(version, version, quotas={"entities": [{"client-id": "etl", "producer_byte_rate": LIMIT}]})
    command = [sys.executable, "-m", "gateway", "explain", "--client-id", "etl", "--admin", gateway.admin]
    environ = environment(old_packages) if version == NEW else os.environ
    done = subprocess.run(
        command, env={**environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    assert "producer_byte_rate binds at 1000 B/s" in done.stdout


@pytest.mark.parametrize("writer", [OLD, NEW])
def test_disk_usage_is_read_by_both_versions(old_packages: Path, writer: str) -> None:
    """The agents of one version, the gateways of the other."""

    def run(version: str, task: str, message: str = "") -> str:
        environ = environment(old_packages) if version == OLD else None
        command = [sys.executable, "-c", VOLUME_USAGE, task]
        done = subprocess.run(command, env=environ, input=message, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        return done.stdout

    message = run(writer, "write")
    assert "MinFreePercentage" in message
    read = run(OLD, "read", message)
    assert "/data-1" in read
    assert run(NEW, "read", message) == read


@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_report_reads_the_ledgers_of_both_versions(
    kafka: KafkaCluster, start: Start, tmp_path: Path, old_packages: Path
) -> None:
    topic, ledger = topic_for(kafka), tmp_path / "ledger"
    quotas = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "producer_byte_rate": RECORD // 2}]}
    throttles: dict[str, float] = {}
    for version in (OLD, NEW):
        section = {"path": str(ledger), "gateway": version, "flush_seconds": 1}
        gateway = start(version, version, quotas=quotas, ledger=section)
        for _ in range(3):
            assert produce(gateway, topic) > 0
        throttles[version] = gateway.metric("weir_throttled_requests_total", kind="produce")
        gateway.stop()
    events = [event for event in written(ledger) if isinstance(event, ThrottleEvent)]
    assert {name: sum(event.count for event in events if event.gateway == name) for name in (OLD, NEW)} == throttles

    done = subprocess.run(
        [sys.executable, "-c", OLD_READER, str(ledger)], env=environment(old_packages), capture_output=True, text=True,
        check=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.stdout.split().count("ThrottleEvent") == len(events), "the old version reads the lines of the new one"

    command = [sys.executable, "-m", "gateway", "report", "--events", str(ledger), "--out", str(tmp_path / "report"), "--quiet"]
    subprocess.run([*command, "--master", "local[1]", "--memory", "1g"], check=True, timeout=1_500)
    (table,) = tmp_path.glob("report/csv/top_throttled/*.csv")
    rows = csv.DictReader(table.read_text().splitlines())
    assert sum(int(row["throttled"]) for row in rows) == sum(throttles.values())
