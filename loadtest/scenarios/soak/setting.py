"""The gateway of the soak with quotas, groups, sharing, ledger and TLS, and the cluster behind it. It has no SASL."""

from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.scenarios.soak.visitor import CALM, CAPPED_TOPIC
from loadtest.testkit.certificates import Authority, Files
from loadtest.testkit.gateway_process import BROKER_PORTS
from loadtest.testkit.kafka import KafkaCluster, free_port_range

BROKERS: Final = 3
WORKERS: Final = 2
PARTITIONS: Final = 6
HOST: Final = "127.0.0.1"
JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms64m -Xmx256m"
BROKER_PROPERTIES: Final = {
    "leader.imbalance.check.interval.seconds": "30",
    "max.connections": "20000",
    # A busy machine must not look like a dead broker.
    "broker.session.timeout.ms": "9000",
    "controller.quorum.election.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "6000",
}
MUTATOR: Final = "mutator"

_PLENTY: Final = 10**9
_TIMEOUT: Final = 60.0


def quotas(factor: float) -> dict[str, Any]:
    """The section `quotas`. `factor` multiplies the tight limits."""
    free = {"type": "MinFreeBytes"}
    return {
        "entities": [
            {"client-id": "<default>", "producer_byte_rate": _PLENTY, "consumer_byte_rate": _PLENTY, "request_rate": 10_000},
            {"client-id": MUTATOR, "controller_mutation_rate": 0.2 * factor},
            *(
                {"client-id": f"greedy-{number}", "producer_byte_rate": int(5_000 * factor), "consumer_byte_rate": _PLENTY}
                for number in range(4)
            ),
            *({"client-id": f"watcher-{number}", "request_rates": {"Metadata": 10 * factor}} for number in range(3)),
            {
                "client-id": "rough-0",
                "producer_byte_rate": int(2_000 * factor),
                "consumer_byte_rate": int(3_000 * factor),
                "shadow": {"producer_byte_rate": int(500 * factor)},
            },
        ],
        "groups": [
            {"name": "capacity", "producer_byte_rate": int(80_000 * factor)},
            {
                "name": "rough",
                "parent": "capacity",
                "match": [{"client-id": "rough-*"}],
                "producer_byte_rate": {"guarantee": int(20_000 * factor)},
            },
            {
                "name": "greedy",
                "parent": "capacity",
                "match": [{"client-id": "greedy-*"}],
                "producer_byte_rate": {"guarantee": int(5_000 * factor), "weight": 0.5},
            },
        ],
        "topics": {
            "total.bytes.in.per.sec.threshold": int(75_000 * factor),
            "bytes.in.per.sec.threshold": {CAPPED_TOPIC: int(3_000 * factor)},
        },
        "volumes": {"soft": {**free, "level": 2 * 10**9}, "hard": {**free, "level": 10**9}},
    }


def config(listeners: list[dict[str, Any]], directory: Path) -> dict[str, Any]:
    """The gateway's config without the sections that `GatewayProcess` makes."""
    return {
        "listeners": listeners,
        "workers": WORKERS,
        "quotas": quotas(1.0),
        "connections": {"max_per_ip": 20_000, "max_connections": 20_000},
        "ledger": {"path": str(directory / "ledger"), "topic": "__weir_throttles"},
        "quota_admins": ["User:ANONYMOUS"],
        "sharing": {},
    }


def listeners(certificate: Files) -> list[dict[str, Any]]:
    """A listener without TLS, and one with it."""
    found = []
    for name, extra in (("plain", {}), ("tls", {"tls": {"cert": str(certificate.cert), "key": str(certificate.key)}})):
        first = free_port_range(1 + BROKER_PORTS)
        ports = {"bootstrap_port": first, "broker_ports": f"{first + 1}-{first + BROKER_PORTS}"}
        found.append({"name": name, "host": HOST, "advertised_host": HOST, **ports, **extra})
    return found


def new_certificate(authority: Authority, number: int) -> Files:
    return authority.issue(f"gateway-{number}", [HOST, "localhost"])


def create_topics(cluster: KafkaCluster, epochs: int) -> list[str]:
    """Create the topics of all epochs, and return their names."""
    names = [CAPPED_TOPIC, *(f"{kind}-{epoch:02}" for epoch in range(epochs) for kind in (CALM, "rough"))]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
        future.result(_TIMEOUT)
    return names
