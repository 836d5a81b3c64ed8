"""A quota changed in the config file applies to open connections. A bad file changes nothing."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import KafkaError, Producer

from loadtest.testkit.kafka import KafkaCluster
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

TIMEOUT = 60.0
CLIENT = "etl"
RECORD = bytes(10_000)
QUOTA = 20_000
RAISED = 10**12
"""A rate so high that a debt is gone before it can be shown."""
"""Bytes per second. With the smallest window the burst is one second's worth."""


def with_rate(gateway: Weir, rate: int | None) -> dict[str, Any]:
    """Return the gateway's config with this quota for the client. None means no quota."""
    entities = [] if rate is None else [{"client-id": CLIENT, "producer_byte_rate": rate}]
    return gateway.config | {"quotas": {"window": {"samples": 2, "seconds": 1}, "entities": entities}}


class Client:
    """A producer whose connections must stay open."""

    def __init__(self, gateway: Weir, topic: str) -> None:
        self._topic = topic
        self._errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": gateway.bootstrap_servers,
                "client.id": CLIENT,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "error_cb": self._errors.append,
            }
        )

    def produce(self, count: int) -> None:
        """Send records of 10 kB, each in its own request, and wait until all are acknowledged."""
        failed: list[KafkaError] = []
        for _ in range(count):
            self._producer.produce(self._topic, RECORD, callback=lambda error, _: failed.append(error) if error else None)
        assert self._producer.flush(TIMEOUT) == 0
        assert failed == []
        assert self._errors == [], "a connection was lost"


class Laid:
    """A config file and the ways to replace it."""

    def __init__(self, gateway: Weir, how: str) -> None:
        self._gateway = gateway
        self._how = how
        if how == "configmap":
            # As in a Kubernetes mount, the file is a link through ..data, which links to a folder. Only ..data changes.
            self._mount = gateway.config_file.parent / "mount"
            self._mount.mkdir()
            self._version(gateway.config)
            gateway.config_file = self._mount / "weir.yaml"
            gateway.config_file.symlink_to("..data/weir.yaml")

    def _version(self, config: dict[str, Any]) -> None:
        folder = self._mount / f"..{uuid4().hex}"
        folder.mkdir()
        (folder / "weir.yaml").write_text(yaml.safe_dump(config))
        (self._mount / "..data_tmp").symlink_to(folder.name)
        (self._mount / "..data_tmp").rename(self._mount / "..data")

    def change(self, config: dict[str, Any]) -> None:
        if self._how == "configmap":
            self._version(config)
        elif self._how == "in place":
            self._gateway.config_file.write_text(yaml.safe_dump(config))
        else:
            self._gateway.write_config(config)
            if self._how == "sighup":
                self._gateway.reload()


def limit(gateway: Weir) -> float:
    return gateway.metric("weir_quota_limit", kind="produce", client_id=CLIENT)


def throttled(gateway: Weir) -> float:
    return gateway.metric("weir_throttled_requests_total", kind="produce", client_id=CLIENT)


@pytest.mark.parametrize("how", ["replaced", "sighup", "in place", "configmap"])
def test_quota_changes_apply_to_open_connections(kafka: KafkaCluster, tmp_path: Path, how: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"quota-{uuid4().hex[:8]}", partitions=1)
    gateway = Weir(tmp_path, kafka.bootstrap_servers)
    file = Laid(gateway, how)
    with gateway:
        client = Client(gateway, topic)
        client.produce(20)
        assert throttled(gateway) == 0
        connections = gateway.metric("weir_connections_accepted_total")

        file.change(with_rate(gateway, QUOTA))
        wait_until(lambda: gateway.metric("weir_config_reloads_total", result="success") == 1, "the change is applied")
        client.produce(8)
        wait_until(lambda: limit(gateway) == QUOTA, "the new quota is shown")
        assert throttled(gateway) > 0
        used = gateway.metric("weir_quota_bytes_total", kind="produce", client_id=CLIENT)
        assert used >= 8 * len(RECORD)

        file.change(with_rate(gateway, RAISED))
        wait_until(lambda: limit(gateway) == RAISED, "the raised quota is shown")
        client.produce(1)  # may still wait for its debt
        before = throttled(gateway)
        client.produce(20)
        assert throttled(gateway) == before
        # Use is kept over the changes.
        assert gateway.metric("weir_quota_bytes_total", kind="produce", client_id=CLIENT) >= used + 21 * len(RECORD)

        file.change(with_rate(gateway, None))
        wait_until(lambda: gateway.metric("weir_config_reloads_total", result="success") == 3, "the removal is applied")
        client.produce(20)
        assert throttled(gateway) == before
        assert gateway.metric("weir_connections_accepted_total") == connections


def changed(path: str, value: object) -> Callable[[dict[str, Any]], str]:
    """Return a config with one key, such as `admin.port`, set to another value."""

    def text(config: dict[str, Any]) -> str:
        config = copy.deepcopy(config)
        *parents, last = path.split(".")
        section: Any = config
        for parent in parents:
            section = section[int(parent)] if parent.isdigit() else section.setdefault(parent, {})
        section[last] = value
        return yaml.safe_dump(config)

    return text


BAD = {
    "not YAML": (lambda config: "quotas: [unfinished", "weir.yaml"),
    "empty": (lambda config: "", "upstream"),
    "a list": (lambda config: "- 1\n- 2\n", "weir.yaml"),
    "unknown section": (changed("quotes", {}), "quotes"),
    "unknown key": (changed("quotas.enfroce", True), "enfroce"),
    "negative quota": (
        changed("quotas.entities", [{"client-id": CLIENT, "producer_byte_rate": -1}]),
        "quotas.entities[0].producer_byte_rate",
    ),
    "text for a number": (
        changed("quotas.entities", [{"client-id": CLIENT, "producer_byte_rate": "fast"}]),
        "quotas.entities[0].producer_byte_rate",
    ),
    "entity without a name": (changed("quotas.entities", [{"producer_byte_rate": 1_000}]), "quotas.entities[0]"),
    "entity twice": (
        changed("quotas.entities", [{"client-id": CLIENT, "producer_byte_rate": rate} for rate in (1_000, 2_000)]),
        "quotas.entities[1]",
    ),
    "unknown algorithm": (changed("quotas.algorithm", "leaky_bucket"), "quotas.algorithm"),
    "what needs a restart": (changed("admin.port", 1), "admin.port"),
}


@pytest.fixture(scope="module")
def limited(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    gateway = Weir(tmp_path_factory.mktemp("weir"), kafka.bootstrap_servers)
    gateway.config = with_rate(gateway, QUOTA)
    gateway.write_config(gateway.config)
    with gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(limited: Weir, kafka: KafkaCluster) -> Client:
    return Client(limited, create_topic(kafka.bootstrap_servers, f"quota-{uuid4().hex[:8]}", partitions=1))


@pytest.mark.parametrize("bad", BAD)
def test_bad_file_changes_nothing(limited: Weir, client: Client, bad: str) -> None:
    client.produce(1)
    make, key = BAD[bad]
    failures = limited.metric("weir_config_reloads_total", result="failure")
    version = limited.metric("weir_config_version")
    connections = limited.metric("weir_connections_accepted_total")
    logged = len(limited.events())
    written = limited.config_file.with_suffix(".new")
    written.write_text(make(limited.config))
    written.replace(limited.config_file)  # at once: the reloader must see no half of it
    wait_until(lambda: limited.metric("weir_config_reloads_total", result="failure") == failures + 1, "the failure is counted")

    def complaints() -> list[str]:
        """A thread writes the log, so the line may come after the count."""
        return [event["msg"] for event in limited.events()[logged:] if event["level"] in ("warning", "error")]

    wait_until(lambda: any(key in complaint for complaint in complaints()), "the log names the key")

    assert limited.metric("weir_config_version") == version
    assert limit(limited) == QUOTA
    before = throttled(limited)
    client.produce(4)
    assert throttled(limited) > before
    assert limited.metric("weir_connections_accepted_total") == connections

    limited.write_config(limited.config)  # valid and unchanged, so that the next bad file is a new failure
    wait_until(lambda: limited.get("/readyz") is not None, "ready")
