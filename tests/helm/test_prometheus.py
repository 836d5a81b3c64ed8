"""Rules and dashboards read existing metrics, promtool and a real Prometheus accept them, and alerts fire."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Distribution
from gateway.quotas.kinds import KINDS, ROW_KINDS
from gateway.workers.families import WORKER_METRICS
from loadtest.testkit.kafka import KafkaCluster
from tests.helm.prometheus_process import Prometheus, program
from tests.helm.queries import (
    ALERTS,
    DASHBOARDS,
    Query,
    dashboard,
    panel_queries,
    panels,
    rule_queries,
    rules,
    variable_queries,
)
from tests.weir_process import Weir, wait_until

TESTS = Path(__file__).parent / "alerts-test.yaml"
GRAFANAS_OWN = {"__rate_interval", "__range"}
FROM_THE_SCRAPE = {"job", "instance", "le"}
PROCESS_METRICS = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
"""The metrics of prometheus_client's ProcessCollector that the files read."""
LABELS: dict[str, set[str]] = {name: set() for name in PROCESS_METRICS}
for row in METRICS:
    suffixes = ("_bucket", "_sum", "_count") if isinstance(row, Distribution) else ("",)
    LABELS |= {row.name + suffix: set(row.labels) for suffix in suffixes}
LABELS |= {metric.name: {"worker"} for metric in WORKER_METRICS}

ALL_QUERIES = [*rule_queries(), *(query for file in DASHBOARDS for query in panel_queries(file))]
each_dashboard = pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)


@pytest.mark.parametrize("query", ALL_QUERIES, ids=lambda query: query.where)
def test_queries_read_existing_metrics(query: Query) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = list(query.metrics())
    assert read or query.recorded()
    for metric, selected_by in read:
        assert metric in LABELS
        assert selected_by <= LABELS[metric] | FROM_THE_SCRAPE
    assert query.recorded() <= recorded


def test_recording_rules_are_for_existing_metrics() -> None:
    for rule in rules():
        if "record" in rule:
            level, metric, operations = rule["record"].split(":")
            assert level
            assert operations
            assert any(name.startswith(metric) for name in LABELS), rule["record"]


def test_alerts_have_severity_summary_and_runbook() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 20
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook", "runbook_url"}, rule["alert"]
        assert all(text.strip() for text in rule["annotations"].values()), rule["alert"]


def test_each_alert_is_tested_to_fire_and_to_stay_quiet() -> None:
    checks = [
        {re.search('alertname="(\\w+)"', sample["labels"])[1] for sample in check["exp_samples"]}  # type: ignore[index]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for check in test.get("promql_expr_test", ())
    ]
    for rule in rules():
        if "alert" in rule:
            assert any(rule["alert"] in firing for firing in checks), rule["alert"]
            assert any(rule["alert"] not in firing for firing in checks), rule["alert"]


@each_dashboard
def test_dashboard_can_be_imported_anywhere(file: Path) -> None:
    content = dashboard(file)
    assert content["schemaVersion"] >= 36
    source, *variables = content["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert set(re.findall(r'"uid": "([^"]+)"', file.read_text())) == {content["uid"], "${datasource}"}
    ids = [panel["id"] for panel in content["panels"]]
    assert len(set(ids)) == len(ids)
    names = {variable["name"] for variable in variables} | GRAFANAS_OWN
    used = set().union(*(query.variables() for query in panel_queries(file)))
    assert used <= names
    assert used | GRAFANAS_OWN == names, "a variable without effect"


@each_dashboard
def test_panels_have_description_and_unit(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(file):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} covers another one"
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["check", "rules", str(ALERTS)], ["test", "rules", str(TESTS)]], ids=["check", "test"])
def test_promtool_accepts_rules(arguments: list[str]) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


CLIENT = "etl"
RECORD = bytes(10_000)
GROUP_KEYS = tuple(kind.config_key for kind in ROW_KINDS if "group" in kind.entity_types)
CONFIG: dict[str, Any] = {
    "quotas": {
        "window": {"samples": 2, "seconds": 1},
        "entities": [
            {
                "client-id": CLIENT,
                "producer_byte_rate": 20_000,
                "consumer_byte_rate": 20_000,
                "controller_mutation_rate": 1,
                "request_rate": 10_000,
                "shadow": {"producer_byte_rate": 10_000},
            },
            {"ip": "<default>", "connection_creation_rate": 1_000},
        ],
        "groups": [
            {"name": "whole", **dict.fromkeys(GROUP_KEYS, 1_000_000)},
            {
                "name": "jobs",
                "parent": "whole",
                "match": [{"client-id": CLIENT}],
                **{key: {"guarantee": 500_000, "ceiling": 1_000_000} for key in GROUP_KEYS},
            },
        ],
        "volumes": {
            "source": "log_dirs",
            "soft": {"type": "MinFreeBytes", "level": 2},
            "hard": {"type": "MinFreeBytes", "level": 1},
            "publish_interval_ms": 1_000,
        },
        "topics": {"total.bytes.in.per.sec.threshold": 1_000_000_000},
    }
}
NOT_HERE = {
    "weir_tls_handshake_failures_total": "no TLS",
    "weir_authentications_total": "no SASL",
    "weir_authentication_failures_total": "no SASL",
    "weir_volume_messages_skipped_total": "no foreign messages",
    "weir_topic_refused_bytes_total": "no broker refuses anything",
    "weir_ledger_topic_connected": "no ledger topic",
    **{row.name: "no sharing" for row in METRICS if row.name.startswith(("weir_sharing_", "weir_api_quota_topic_"))},
    **{metric.name: "one process" for metric in WORKER_METRICS},
    "weir_notify_notifications_total": "no target",
    "weir_notify_waiting": "no target",
}
"""Metrics without a sample under the load of these tests, with the reason."""


@pytest.fixture(scope="module")
def scraped(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Weir, Prometheus]]:
    """A gateway with a client that stays over its quota, and a Prometheus that scrapes it."""
    program("prometheus")
    config = tmp_path_factory.mktemp("weir"), kafka.bootstrap_servers, CONFIG, {"max_connections": 1_000}
    with (
        Weir(*config) as weir,
        Prometheus(tmp_path_factory.mktemp("prometheus"), [weir.admin.removeprefix("http://")], ALERTS) as prometheus,
    ):
        client = {"bootstrap.servers": weir.bootstrap_servers, "client.id": CLIENT}
        topic = f"scraped-{uuid4().hex[:8]}"
        admin = AdminClient(client)
        admin.create_topics([NewTopic(topic, 1, replication_factor=1)])[topic].result(60)
        producers = [Producer({**client, "linger.ms": 0, "batch.num.messages": 1}) for _ in range(3)]
        for producer in producers:
            for _ in range(200):  # 300 s of the quota; unsent records are dropped after the tests
                producer.produce(topic, RECORD)
        consumer = Consumer({**client, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1), "records are consumed")
        yield weir, prometheus
        consumer.close()
        for producer in producers:
            producer.purge()
            producer.flush(60)


def grafana(weir: Weir) -> dict[str, str]:
    """Return the values of Grafana's variables that show the client."""
    everything = dict.fromkeys(("kind", "user", "ip", "listener", "group"), ".*")
    own = {"__rate_interval": "15s", "__range": "1m"}
    return {**everything, **own, "client_id": f"{CLIENT}|", "instance": weir.admin.removeprefix("http://")}


@pytest.mark.broker
@each_dashboard
def test_each_panel_has_data(scraped: tuple[Weir, Prometheus], file: Path) -> None:
    weir, prometheus = scraped
    values = grafana(weir)
    for query in panel_queries(file):
        expression = query.filled_in(values)
        if any(metric in NOT_HERE for metric, _ in query.metrics()) or query.where.endswith("Config reloads"):
            assert prometheus.query(expression) == [], f"{query.where}: has data"
        else:
            wait_until(lambda expression=expression: prometheus.query(expression), f"{query.where}: {expression}")


@pytest.mark.broker
@each_dashboard
def test_each_variable_has_values(scraped: tuple[Weir, Prometheus], file: Path) -> None:
    weir, prometheus = scraped
    values = grafana(weir)
    queries = variable_queries(file)

    def look() -> dict[str, list[str]]:
        return {name: prometheus.label_values(label, query.filled_in(values)) for name, (query, label) in queries.items()}

    if file.stem == "groups":
        wait_until(lambda: look() == {"instance": [values["instance"]], "group": ["jobs", "whole"]}, "both groups are scraped")
        return
    # The consumer starts last.
    wait_until(lambda: "fetch" in look()["kind"], "Prometheus has scraped all metrics")
    found = look()
    assert found["instance"] == [values["instance"]]
    assert set(KINDS) >= set(found["kind"]) >= {"produce", "fetch"}
    if file.stem == "entity":
        assert CLIENT in found["client_id"]
        assert found["ip"] == ["127.0.0.1"]
    else:
        assert found["listener"] == ["clients"]


@pytest.mark.broker
def test_each_rule_is_evaluated(scraped: tuple[Weir, Prometheus]) -> None:
    _, prometheus = scraped
    wait_until(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), "all rules have been evaluated")
    evaluated = prometheus.rules()
    assert sorted(rule["name"] for rule in evaluated) == sorted(query.where for query in rule_queries())
    assert [rule for rule in evaluated if rule["health"] != "ok"] == []
    for rule in rules():
        prometheus.query(rule["expr"])
        if "record" in rule:
            wait_until(lambda name=rule["record"]: prometheus.query(name), f"{rule['record']} has data")


@pytest.mark.broker
def test_throttled_client_fires_the_only_alert(scraped: tuple[Weir, Prometheus]) -> None:
    _, prometheus = scraped

    def throttled() -> list[dict[str, Any]]:
        return [alert for alert in prometheus.alerts() if alert["labels"]["alertname"] == "WeirClientThrottled"]

    alerts = wait_until(throttled, "the client's throttle time is noticed")
    assert {alert["labels"]["client_id"] for alert in alerts} == {CLIENT}
    assert all(f"client-id {CLIENT} is throttled" in alert["annotations"]["summary"] for alert in alerts)
    assert {alert["state"] for alert in alerts} == {"pending"}, "the alert needs half an hour"
    expected = {"WeirClientThrottled", "WeirClientSendsEarly", "WeirQuotaNearlyUsed"}
    # On a busy machine a late scrape may make another alert pending for a moment.
    wait_until(lambda: {alert["labels"]["alertname"] for alert in prometheus.alerts()} <= expected, "no other alert")
