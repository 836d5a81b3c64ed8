"""Quotas changed through the gateway with Kafka's own tools: same output as a broker, immediate effect, persistence."""

import base64
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from gateway.quotas.kinds import KINDS
from loadtest.testkit.kafka import KafkaCluster, Tool, start_tool
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

DESCRIBE, ALTER, PRODUCE = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.PRODUCE
METADATA = ApiKey.METADATA
TOOL = Path(__file__).with_name("ConfigTool.java")
ADMIN = {"quota_admins": ["User:ANONYMOUS"]}

USER, ALL_USERS, DEFAULT_USER = "--entity-type users --entity-name alice", "--entity-type users", "--user-defaults"
CLIENT, ALL_CLIENTS, DEFAULT_CLIENT = "--entity-type clients --entity-name etl", "--entity-type clients", "--client-defaults"
IP, ALL_IPS, DEFAULT_IP = "--entity-type ips --entity-name 10.1.2.3", "--entity-type ips", "--ip-defaults"

OF_USERS = [kind.config_key for kind in KINDS.values() if "client-id" in kind.entity_types]

SCRIPT = [
    # valid commands: each entity and pair, each way to ask
    f"--alter {USER} --add-config producer_byte_rate=1024,consumer_byte_rate=2048",
    f"--describe {USER}",
    f"--alter {DEFAULT_USER} --add-config consumer_byte_rate=4096",
    f"--describe {ALL_USERS}",
    f"--describe {DEFAULT_USER}",
    f"--alter {CLIENT} --add-config producer_byte_rate=512000",
    f"--alter {DEFAULT_CLIENT} --add-config producer_byte_rate=1024000",
    f"--describe {ALL_CLIENTS}",
    f"--describe {DEFAULT_CLIENT}",
    f"--alter {USER} {CLIENT} --add-config producer_byte_rate=10",
    f"--alter {USER} {DEFAULT_CLIENT} --add-config producer_byte_rate=20",
    f"--alter {DEFAULT_USER} {CLIENT} --add-config producer_byte_rate=30",
    f"--alter {DEFAULT_USER} {DEFAULT_CLIENT} --add-config producer_byte_rate=40",
    f"--describe {ALL_USERS} {ALL_CLIENTS}",
    f"--describe {USER} {ALL_CLIENTS}",
    f"--describe {USER} {CLIENT}",
    f"--describe {DEFAULT_USER} {DEFAULT_CLIENT}",
    f"--alter {IP} --add-config connection_creation_rate=1000",
    f"--alter {DEFAULT_IP} --add-config connection_creation_rate=2000",
    f"--describe {ALL_IPS}",
    f"--describe {IP}",
    f"--alter {USER} --add-config producer_byte_rate=2048 --delete-config consumer_byte_rate",
    f"--describe {USER}",
    "--alter --entity-type users --entity-name user,with=signs --add-config producer_byte_rate=1",
    "--alter --entity-type clients --entity-name <default> --add-config producer_byte_rate=1",
    f"--describe {ALL_CLIENTS}",
    # every kind of quota
    *(f"--alter {USER} {CLIENT} --add-config {key}=4096" for key in OF_USERS),
    f"--describe {USER} {CLIENT}",
    f"--alter {USER} {CLIENT} --delete-config {','.join(OF_USERS)}",
    f"--describe {USER} {ALL_CLIENTS}",
    # the broker's quotas: alone, beside Weir's, and configs that are no quotas
    f"--alter {USER} --add-config request_percentage=12.5",
    f"--alter {CLIENT} --add-config request_percentage=50,consumer_byte_rate=77",
    f"--describe {USER}",
    f"--describe {CLIENT}",
    f"--alter {CLIENT} --delete-config request_percentage,consumer_byte_rate",
    f"--describe {CLIENT}",
    f"--alter {USER} --add-config SCRAM-SHA-256=[password=secret]",
    f"--describe {USER}",
    f"--alter {USER} --delete-config SCRAM-SHA-256",
    # invalid commands
    f"--alter {USER} --delete-config consumer_byte_rate",
    f"--alter {USER} --add-config producer_byte_rate=0",
    f"--alter {USER} --add-config producer_byte_rate=-1",
    f"--alter {USER} --add-config producer_byte_rate=1.5",
    f"--alter {USER} --add-config producer_byte_rate=1e300",
    f"--alter {USER} --add-config producer_byte_rate=fast",
    f"--alter {USER} --add-config request_percentage=0",
    f"--alter {CLIENT} --add-config producer_byte_rate=99,request_percentage=-1",
    f"--alter {USER} --add-config speed=1",
    f"--alter {USER} --add-config connection_creation_rate=1",
    f"--alter {IP} --add-config producer_byte_rate=1",
    f"--alter {IP} --add-config connection_creation_rate=3000000000",
    f"--alter {IP} --add-config connection_creation_rate=1.5",
    "--alter --entity-type ips --entity-name nowhere.invalid --add-config connection_creation_rate=1",
    f"--alter {USER} {IP} --add-config connection_creation_rate=1",
    f"--describe {CLIENT}",
    # and removed again
    f"--alter {USER} --delete-config producer_byte_rate,request_percentage",
    f"--alter {IP} --delete-config connection_creation_rate",
    f"--describe {ALL_USERS}",
    f"--describe {ALL_IPS}",
]


class Outcome(NamedTuple):
    code: str
    out: str
    err: str


class ConfigTool:
    """kafka-configs, with the address of the gateway or of a broker."""

    def __init__(self) -> None:
        self._tool: Tool = start_tool(TOOL, stdin=subprocess.PIPE)
        self._lines = iter(self._tool)

    def run(self, bootstrap_servers: str, arguments: str) -> Outcome:
        stdin = self._tool.process.stdin
        assert stdin is not None
        stdin.write("\t".join(["--bootstrap-server", bootstrap_servers, *arguments.split()]) + "\n")
        stdin.flush()
        code, out, err = next(self._lines).split()
        said, complained = (base64.b64decode(text[1:-1]).decode().replace(bootstrap_servers, "HERE") for text in (out, err))
        # Each line is an entity. Their order is that of a Java hash table, which a broker does not guarantee either.
        return Outcome(code, "\n".join(sorted(said.splitlines())), complained)

    def close(self) -> None:
        assert self._tool.process.stdin is not None
        self._tool.process.stdin.close()
        self._tool.finish()


def parts(**names: str | None) -> list[dict[str, str | None]]:
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in names.items()]


def alter(client: RequestClient, entity: list[dict[str, str | None]], **values: float | None) -> dict[str, Any]:
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    answer = client.ask(ALTER, 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False})
    result: dict[str, Any]
    (result,) = answer["entries"]
    return result


def describe(client: RequestClient) -> dict[str, dict[str, float]]:
    answer = client.ask(DESCRIBE, 1, {"components": [], "strict": False})
    assert answer["error_code"] == 0
    return {
        ", ".join(f"{part['entity_type']}={part['entity_name']}" for part in entry["entity"]): {
            each["key"]: each["value"] for each in entry["values"]
        }
        for entry in answer["entries"]
    }


def described_by(gateway: Weir) -> dict[str, dict[str, float]]:
    with RequestClient(gateway.bootstrap_servers) as client:
        return describe(client)


def forget(bootstrap_servers: str) -> None:
    """Remove all quotas."""
    with RequestClient(bootstrap_servers) as client:
        for entry in client.ask(DESCRIBE, 1, {"components": [], "strict": False})["entries"]:
            assert alter(client, entry["entity"], **{each["key"]: None for each in entry["values"]})["error_code"] == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster of its own, because its quotas would apply to other tests."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def outcomes(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Outcome, Outcome]]:
    """Each line of the script, with the outcomes of a broker and of Weir."""

    def run(bootstrap_servers: str) -> Iterator[Outcome]:
        for line in SCRIPT:
            yield tool.run(bootstrap_servers, line)
            if "--alter" in line:  # through Weir, some of it is the broker's
                wait_until_known(cluster.bootstrap_servers)

    with closing(ConfigTool()) as tool:
        direct = list(run(cluster.bootstrap_servers))
        forget(cluster.bootstrap_servers)
        wait_until_known(cluster.bootstrap_servers)
        with Weir(tmp_path_factory.mktemp("weir"), cluster.bootstrap_servers, ADMIN) as gateway:
            through = list(run(gateway.bootstrap_servers))
            forget(gateway.bootstrap_servers)
    return list(zip(SCRIPT, direct, through, strict=True))


def wait_until_known(bootstrap_servers: str) -> None:
    """Wait until the broker knows all changes. Brokers learn them in the order of the controller."""
    last = parts(client_id="last")
    with RequestClient(bootstrap_servers) as client:
        for value in (1.0, None):
            assert alter(client, last, producer_byte_rate=value)["error_code"] == 0
            wait_until(
                lambda: ("client-id=last" in describe(client)) == (value is not None),  # noqa: B023
                "the broker knows the last change",
            )


@pytest.mark.parametrize("index", range(len(SCRIPT)), ids=SCRIPT)
def test_tool_prints_the_same_as_for_a_broker(outcomes: list[tuple[str, Outcome, Outcome]], index: int) -> None:
    _, direct, through = outcomes[index]
    assert through == direct


def test_compared_commands_include_good_and_bad(outcomes: list[tuple[str, Outcome, Outcome]]) -> None:
    codes = [direct.code for _, direct, _ in outcomes]
    assert codes.count("0") >= 30
    assert codes.count("1") >= 12
    assert any("Quota producer_byte_rate must be greater than 0" in direct.err for _, direct, _ in outcomes)
    assert any("consumer_byte_rate=2048.0, producer_byte_rate=1024.0" in direct.out for _, direct, _ in outcomes)


def produce(client: RequestClient, topic: str) -> int:
    """Produce 10 kB and return the throttle time in ms."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1_700_000_000_000, None, bytes(10_000), [])
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
    answer = client.ask(PRODUCE, 9, {"acks": -1, "timeout_ms": 5000, "topic_data": data})
    assert [part["error_code"] for each in answer["responses"] for part in each["partition_responses"]] == [0]
    throttle: int = answer["throttle_time_ms"]
    return throttle


def row(gateway: Weir, client_id: str) -> dict[str, Any]:
    rows = gateway.api("quotas")["rows"]
    found: dict[str, Any] = next(each for each in rows if (each["kind"], each["client_id"]) == ("produce", client_id))
    return found


def test_quota_applies_at_once_and_survives_a_kill(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(cluster.bootstrap_servers, f"felt-at-once-{uuid4().hex[:8]}", partitions=1)
    config = ADMIN | {
        "quotas": {
            "window": {"samples": 2, "seconds": 1},
            "entities": [{"client-id": "etl", "producer_byte_rate": 100_000_000}],
        }
    }
    gateway = Weir(tmp_path, cluster.bootstrap_servers, config)
    with gateway, RequestClient(gateway.bootstrap_servers, "etl") as client, RequestClient(gateway.bootstrap_servers) as admin:
        assert produce(client, topic) == 0
        assert (row(gateway, "etl")["limit"], row(gateway, "etl")["source"]) == (100_000_000, "file")

        assert alter(admin, parts(client_id="etl"), producer_byte_rate=1_000.0)["error_code"] == 0
        assert produce(client, topic) > 0
        shown = row(gateway, "etl")
        assert (shown["limit"], shown["source"], shown["level"]) == (1_000, "api", "client-id=etl")

        gateway.process.kill()
        gateway.process.wait()
        gateway.start()
        with RequestClient(gateway.bootstrap_servers, "etl") as client, RequestClient(gateway.bootstrap_servers) as admin:
            assert describe(admin) == {"client-id=etl": {"producer_byte_rate": 1_000.0}}
            assert produce(client, topic) > 0

            # After the removal the file's value applies at once, also to a muted client.
            assert alter(admin, parts(client_id="etl"), producer_byte_rate=None)["error_code"] == 0
            assert describe(admin) == {"client-id=etl": {"producer_byte_rate": 100_000_000.0}}
            assert produce(client, topic) == 0
            assert row(gateway, "etl")["source"] == "file"


def test_request_rate_of_one_api_applies_at_once(cluster: KafkaCluster, tmp_path: Path) -> None:
    config = ADMIN | {"quotas": {"window": {"samples": 2, "seconds": 1}}}
    key = "request_rates.Metadata"
    with (
        Weir(tmp_path, cluster.bootstrap_servers, config) as gateway,
        RequestClient(gateway.bootstrap_servers, "scraper") as client,
        RequestClient(gateway.bootstrap_servers) as admin,
    ):

        def throttle_time() -> int:
            return int(client.ask(METADATA, 9, {"topics": []})["throttle_time_ms"])

        assert [throttle_time() for _ in range(3)] == [0, 0, 0]
        assert alter(admin, parts(client_id="scraper"), **{key: 2.0})["error_code"] == 0
        assert describe(admin) == {"client-id=scraper": {key: 2.0}}
        times = [throttle_time()]
        while not times[-1] and len(times) < 50:  # a slow machine asks within the rate
            times.append(throttle_time())
        assert 0 < times[-1] <= 500
        (found,) = [each for each in gateway.api("quotas")["rows"] if each["kind"] == "request_rate.Metadata"]
        assert (found["limit"], found["source"], found["amount_total"]) == (2.0, "api", len(times))

        for wrong, remedy in (
            ("request_rates.metadata", "did you mean request_rates.Metadata?"),
            (f"shadow.{key}", "config file"),
        ):
            refused = alter(admin, parts(client_id="scraper"), **{wrong: 1.0})
            assert refused["error_code"] == 42
            assert remedy in refused["error_message"]
        assert alter(admin, parts(client_id="scraper"), **{key: None})["error_code"] == 0
        assert [throttle_time() for _ in range(3)] == [0, 0, 0]


def test_client_that_is_no_admin_is_refused_until_reload(cluster: KafkaCluster, tmp_path: Path) -> None:
    with Weir(tmp_path, cluster.bootstrap_servers) as gateway, RequestClient(gateway.bootstrap_servers) as client:
        entity = parts(user="alice", client_id=None)
        denied = alter(client, entity, producer_byte_rate=1.0, request_percentage=1.0)
        assert (denied["error_code"], denied["entity"]) == (31, entity)
        assert "User:ANONYMOUS" in denied["error_message"]
        for version in (0, 1):
            answer = client.ask(DESCRIBE, version, {"components": [], "strict": False})
            assert (answer["error_code"], answer["entries"]) == (31, None)
        gateway.write_config(gateway.config | ADMIN)
        wait_until(lambda: gateway.metric("weir_config_reloads_total", result="success") == 1, "the change is applied")
        assert describe(client) == {}
        assert alter(client, entity, producer_byte_rate=1.0)["error_code"] == 0
        assert describe(client) == {"client-id=None, user=alice": {"producer_byte_rate": 1.0}}
        with RequestClient(cluster.bootstrap_servers) as direct:
            assert describe(direct) == {}  # the broker gets none of these


def test_quota_unknown_to_weir_goes_to_the_broker(cluster: KafkaCluster, tmp_path: Path) -> None:
    with (
        Weir(tmp_path, cluster.bootstrap_servers, ADMIN) as gateway,
        RequestClient(gateway.bootstrap_servers) as client,
        RequestClient(cluster.bootstrap_servers) as direct,
    ):
        entity = parts(user="alice")
        assert alter(client, entity, producer_byte_rate=1000.0, request_percentage=12.5)["error_code"] == 0
        assert alter(direct, entity, consumer_byte_rate=7.0)["error_code"] == 0
        wait_until_known(cluster.bootstrap_servers)
        assert describe(direct) == {"user=alice": {"request_percentage": 12.5, "consumer_byte_rate": 7.0}}
        assert describe(client) == {"user=alice": {"producer_byte_rate": 1000.0, "request_percentage": 12.5}}
        forget(cluster.bootstrap_servers)
        wait_until_known(cluster.bootstrap_servers)


def test_each_lever_of_kip_13_works_on_an_open_connection(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Enforcement off and on, a client exempt and back, its quota changed by file and API: each applies to the next request."""
    topic = create_topic(cluster.bootstrap_servers, f"levers-{uuid4().hex[:8]}", partitions=1)
    window = {"samples": 2, "seconds": 1}
    limited = {"client-id": "etl", "producer_byte_rate": 1_000}
    gateway = Weir(tmp_path, cluster.bootstrap_servers, ADMIN | {"quotas": {"window": window, "entities": [limited]}})
    reloads = 0

    def reload(entity: dict[str, Any], *, enforce: bool = True) -> None:
        nonlocal reloads
        reloads += 1
        gateway.write_config(gateway.config | {"quotas": {"window": window, "enforce": enforce, "entities": [entity]}})
        wait_until(lambda: gateway.metric("weir_config_reloads_total", result="success") == reloads, "the change is applied")

    with gateway, RequestClient(gateway.bootstrap_servers, "etl") as client, RequestClient(gateway.bootstrap_servers) as admin:
        assert produce(client, topic) > 0
        shown = row(gateway, "etl")
        assert shown["used_ratio"] > 1
        assert gateway.metric("weir_quota_used_ratio", kind="produce", client_id="etl") > 1

        reload(limited, enforce=False)
        assert produce(client, topic) == 0
        assert row(gateway, "etl")["throttled_total"] > shown["throttled_total"]  # unenforced throttles are counted
        reload(limited)
        assert produce(client, topic) > 0

        reload({"client-id": "etl", "exempt": True})
        assert produce(client, topic) == 0
        assert (row(gateway, "etl")["limit"], row(gateway, "etl")["level"]) == (None, "client-id=etl (exempt)")
        reload(limited)
        assert produce(client, topic) > 0

        assert alter(admin, parts(client_id="etl"), producer_byte_rate=1e8)["error_code"] == 0
        assert produce(client, topic) == 0
        assert alter(admin, parts(client_id="etl"), producer_byte_rate=None)["error_code"] == 0
        assert produce(client, topic) > 0
        reload(limited | {"producer_byte_rate": 100_000_000})
        assert produce(client, topic) == 0
        assert gateway.metric("weir_connections_accepted_total") == 2
