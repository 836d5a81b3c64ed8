"""The metrics page, parsed with Prometheus's own parsers."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.admin.metrics.clients import api_name
from gateway.admin.metrics.registry import METRICS, exposition
from gateway.admin.metrics.row import Histogram, Value, label, reasons
from gateway.admin.view import AdminView
from gateway.config.effective import ReloadResult
from gateway.config.problems import Problem
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionSlot
from gateway.features.topic_quotas.feature import TopicQuotasFeature
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import THROTTLE_BOUNDS, UsageRow
from gateway.steps import Steps, at_once
from protocol.api_keys import APIS
from tests.gateway.conftest import Readiness, reported, scraped
from tests.gateway.features.topic_quotas.listing import list_topics

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def samples(families: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "Prometheus refuses a page with two samples of the same labels"
            found[key] = sample.value
    return found


class Page:
    """A scraped page."""

    def __init__(self, view: AdminView, accept: str = "") -> None:
        pieces, self.content_type = at_once(exposition(scraped(view), accept))
        parse = open_metrics_families if "openmetrics" in self.content_type else text_string_to_metric_families
        self.text = b"".join(pieces).decode()
        self.families = list(parse(self.text))
        self.samples = samples(self.families)

    def __getitem__(self, name: str) -> float:
        return self.get(name)

    def get(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def has(self, name: str, **labels: str) -> bool:
        return (name, frozenset(labels.items())) in self.samples


def row(kind: str = "produce", user: str = "u", client_id: str = "c", **changes: object) -> UsageRow:
    values = {"ip": "", "level": "", "source": "", "limit": None, "rate": 1.0, "used_ratio": 0.0, "tokens": None}
    totals = {
        "amount_total": 10,
        "throttled_total": 1,
        "unenforced_total": 0,
        "throttle_seconds_total": 0.5,
        "early_total": 1,
        "early_seconds_total": 0.5,
        "early_seconds_max": 0.5,
        "throttle_left": 0.0,
        "connections": 1,
        "throttled_seconds": None,
        "unthrottled_seconds": None,
        "addresses": (),
    }
    return UsageRow(kind, user, client_id, **{**values, **totals, **changes})  # type: ignore[arg-type]


def test_buckets_have_metrics(view: AdminView) -> None:
    page = Page(view)
    alice = {"kind": "produce", "user": "alice", "client_id": "etl"}
    bob = {"kind": "produce", "user": "bob", "client_id": "app"}
    assert page.get("weir_quota_bytes_total", **alice) == 1_300_000
    assert page.get("weir_quota_limit", **alice) == 100_000
    assert page.get("weir_quota_tokens", **alice) == pytest.approx(-300_000)
    assert page.get("weir_throttled_requests_total", **alice) == 1
    assert page.get("weir_throttle_seconds_total", **alice) == pytest.approx(3.0)
    assert page.get("weir_early_requests_total", **alice) == 2
    assert page.get("weir_early_request_seconds_total", **alice) == 2.0
    assert page.get("weir_quota_bytes_total", **bob) == 200_000
    assert page.get("weir_throttled_requests_total", **bob) == 0
    used, limit = page.get("weir_quota_usage", **bob), page.get("weir_quota_limit", **bob)
    assert page.get("weir_quota_used_ratio", **bob) == pytest.approx(used / limit)


def test_bucket_without_limit_has_usage_only(view: AdminView) -> None:
    page = Page(view)
    names = {name for name, labels in page.samples if {("kind", "fetch"), ("client_id", "app")} <= labels}
    assert {"weir_quota_bytes_total", "weir_quota_usage"} <= names
    assert names.isdisjoint({"weir_quota_limit", "weir_quota_used_ratio", "weir_quota_tokens"})


def test_address_has_a_label_that_no_client_can_take(view: AdminView, engine: QuotaEngine) -> None:
    quota = EntityQuota(ClientQuotaEntity(ip="10.0.0.9"), {"connection_creation_rate": 5})
    engine.apply(QuotaSettings((quota,)), view.monotonic())
    bucket = engine.acquire_ip("connection", "10.0.0.9", view.monotonic())
    assert bucket is not None
    for _ in range(51):
        bucket.charge_connection(1.0, view.monotonic())
    page = Page(view)
    address = {"kind": "connection", "user": "", "client_id": "", "ip": "10.0.0.9"}
    assert page.get("weir_quota_limit", **address) == 5
    assert page.get("weir_throttled_requests_total", **address) == 1
    assert not any(("ip", "") in labels for _, labels in page.samples)
    assert not page.has("weir_early_requests_total", **address)


def test_scope_broker_adds_the_label_broker(view: AdminView, engine: QuotaEngine) -> None:
    quota = EntityQuota(ClientQuotaEntity("carol"), {"producer_byte_rate": 5, "controller_mutation_rate": 5})
    engine.apply(QuotaSettings((quota,), by_broker=True), view.monotonic())
    for broker, size in ((1, 7), (2, 9)):
        engine.acquire_path("produce", "carol", "", view.monotonic(), broker=broker)[0].charge(size, view.monotonic())
    engine.acquire_path("controller_mutation", "carol", "", view.monotonic(), broker=1)[0].charge(1, view.monotonic())
    page = Page(view)
    carol = {"user": "carol", "client_id": ""}
    at_brokers = [page.get("weir_quota_bytes_total", kind="produce", **carol, ip="", broker=broker) for broker in ("1", "2")]
    assert at_brokers == [7, 9]
    assert page.get("weir_quota_partitions_total", kind="controller_mutation", **carol) == 1


def test_groups_have_metrics_of_their_own(view: AdminView, engine: QuotaEngine) -> None:
    jobs = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": 1_000})
    engine.apply(QuotaSettings((jobs.quota,), groups=(jobs,)), view.monotonic())
    own, group = engine.acquire_path("produce", "carol", "job-1", view.monotonic())
    before = Page(view).get("weir_quota_bytes_total", kind="produce", user="", client_id="job-1")
    for bucket in (own, group):
        bucket.charge(12_000, view.monotonic())
    page = Page(view)
    labels = {"group": "jobs", "kind": "produce"}
    assert page.get("weir_group_limit", **labels) == 1_000
    assert page.get("weir_group_usage", **labels) > 0
    assert page.get("weir_group_used_ratio", **labels) > 1.0
    assert page.get("weir_group_throttled_requests_total", **labels) == 1
    assert page.get("weir_quota_bytes_total", kind="produce", user="", client_id="job-1") == before + 12_000
    assert not page.has("weir_quota_bytes_total", kind="produce", user="", client_id="")


def test_small_quotas_are_counted_from_every_source(view: AdminView, engine: QuotaEngine) -> None:
    file = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 100, "consumer_byte_rate": 10**9})
    dynamic = {ClientQuotaEntity("bob"): {"producer_byte_rate": 100.0, "request_percentage": 1.0}}
    engine.apply(QuotaSettings((file,), dynamic), view.monotonic())
    page = Page(view)
    assert page.get("weir_small_quotas", kind="produce") == 2
    assert page.get("weir_small_quotas", kind="fetch") == 0
    assert not page.has("weir_small_quotas", kind="connection")


def test_listeners_have_metrics(view: AdminView) -> None:
    page = Page(view)
    assert page.get("weir_listener_connections", listener="clients") == 3
    assert page.get("weir_listener_max_connections", listener="clients") == 10
    assert page.get("weir_listener_used_ratio", listener="clients") == 0.3
    assert not page.has("weir_listener_max_connections", listener="others")
    assert not page.has("weir_listener_used_ratio", listener="others")
    assert page.get("weir_accept_throttle_seconds_total", listener="others") == 0
    assert page["weir_held_connections"] == 0


def test_maximum_of_the_whole_gateway_has_a_label_of_its_own(view: AdminView, limiter: ConnectionQuotasFeature) -> None:
    assert not Page(view).has("weir_listener_used_ratio", listener="<gateway>")
    listeners = {"clients": AcceptLimits(max_connections=10), "others": AcceptLimits()}
    limiter.apply(ConnectionLimits(1, {}, AcceptLimits(max_connections=12), listeners))
    page = Page(view)
    assert page.get("weir_listener_max_connections", listener="<gateway>") == 12
    assert page.get("weir_listener_used_ratio", listener="<gateway>") == 0.25
    assert page.get("weir_listener_used_ratio", listener="clients") == 0.3


def test_sum_over_listeners_counts_each_connection_once(view: AdminView, limiter: ConnectionQuotasFeature) -> None:
    limiter.apply(
        ConnectionLimits(1, {}, AcceptLimits(max_connections=12), {"clients": AcceptLimits(), "others": AcceptLimits()})
    )
    counts = [value for (name, _), value in Page(view).samples.items() if name == "weir_listener_connections"]
    assert sum(counts) == 3


def test_users_with_a_maximum_have_metrics(view: AdminView, engine: QuotaEngine, limiter: ConnectionQuotasFeature) -> None:
    engine.apply(QuotaSettings((EntityQuota(ClientQuotaEntity(user="alice"), {"max_connections": 7}),)), view.monotonic())
    for number, user in enumerate(["alice", "alice", "bob"]):
        slot = limiter.quotas.accept("others", f"10.0.1.{number}", view.monotonic())
        assert isinstance(slot, ConnectionSlot)
        slot.identify(user, view.monotonic())
    page = Page(view)
    assert page.get("weir_user_connections", user="alice") == 2
    assert page.get("weir_user_max_connections", user="alice") == 7
    assert not page.has("weir_user_connections", user="bob")


def test_throttle_times_are_a_cumulative_histogram(view: AdminView) -> None:
    page = Page(view)
    assert page.get("weir_throttle_time_seconds_bucket", kind="produce", le="1.0") == 0
    assert page.get("weir_throttle_time_seconds_bucket", kind="produce", le="5.0") == 1
    assert page.get("weir_throttle_time_seconds_bucket", kind="produce", le="+Inf") == 1
    assert page.get("weir_throttle_time_seconds_count", kind="produce") == 1
    assert page.get("weir_throttle_time_seconds_sum", kind="produce") == pytest.approx(3.0)
    assert page.get("weir_throttle_time_seconds_count", kind="fetch") == 0


def test_request_latency_is_a_cumulative_histogram_by_api(view: AdminView) -> None:
    page = Page(view)
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in page.samples.items()
        if name == "weir_request_seconds_bucket" and ("api", "Produce") in labels
    }
    assert list(buckets.values()) == sorted(buckets.values())
    assert len(buckets) <= 12
    # A latency in slot i is below 2**i / 2**20 seconds, so it counts at the first bound that is not below that.
    assert buckets[2**8 / 2**20] == 1
    assert buckets[2**10 / 2**20] == 2
    assert buckets[2**26 / 2**20] == 2
    assert buckets[float("inf")] == 3
    assert page.get("weir_request_seconds_sum", api="Produce") == pytest.approx(100.0011)
    assert not page.has("weir_request_seconds_count", api="Fetch")


def test_every_latency_falls_in_a_bucket(view: AdminView) -> None:
    for slots in view.counters.latency:
        for slot in range(len(slots)):
            slots[slot] = 1
    page = Page(view)
    slots = view.counters.latency[0]
    assert page.get("weir_request_seconds_bucket", api="Produce", le="+Inf") == len(slots)
    assert page.get("weir_request_seconds_bucket", api="Produce", le=str(2**20 / 2**20)) == 21
    assert {name for name, _ in page.samples if "request_seconds" in name}


def test_connections_requests_and_errors_have_metrics(view: AdminView) -> None:
    page = Page(view)
    assert page["weir_connections"] == 3
    assert page["weir_connections_accepted_total"] == 4
    assert page["weir_muted_connections"] == 1
    assert page.get("weir_connections_rejected_total", reason="max_per_ip") == 2
    assert page.get("weir_protocol_errors_total", reason="invalid_length") == 1
    assert page.get("weir_authentications_total", mechanism="SCRAM-SHA-256") == 3
    assert page.get("weir_authentication_failures_total", reason="refused") == 2
    assert page.get("weir_requests_total", api="Produce") == 5
    assert page.get("weir_requests_total", api="Fetch") == 7
    assert not page.has("weir_requests_total", api="Metadata")


def test_counters_used_in_alerts_start_at_zero(view: AdminView) -> None:
    page = Page(view)
    assert page.get("weir_connections_rejected_total", reason="broker_unreachable") == 0
    assert page.get("weir_protocol_errors_total", reason="internal") == 0
    assert page.get("weir_tls_reloads_total", result="failure") == 0
    view.counters.protocol_errors["internal"] += 1
    assert Page(view).get("weir_protocol_errors_total", reason="internal") == 1


def test_certificates_have_an_expiry_by_config_key(view: AdminView) -> None:
    assert not Page(view).has("weir_tls_certificate_expiry_timestamp_seconds")
    view.counters.certificate_expiries["listeners[clients].tls.cert"] = 1_800_000_000.0
    assert Page(view).get("weir_tls_certificate_expiry_timestamp_seconds", config_key="listeners[clients].tls.cert") == 1.8e9


def test_reason_that_is_new_during_a_scrape_does_not_break_it(view: AdminView) -> None:
    reads = Value("counter", "weir_test_total", "Test.", ("reason",), reasons(lambda scrape: scrape.counters.protocol_errors))
    view.counters.protocol_errors.update(a=1, b=2)
    steps = reads.family(scraped(view))
    next(steps)
    view.counters.protocol_errors["c"] += 1
    found = {sample.labels["reason"] for sample in at_once(steps).samples}
    assert {"a", "b"} <= found
    assert "c" not in found


def test_weir_ready_matches_readyz(view: AdminView, readiness: Readiness) -> None:
    assert Page(view)["weir_ready"] == 1
    readiness.reason = "draining"
    assert Page(view)["weir_ready"] == 0


def test_last_reload_decides_the_config_metric(view: AdminView) -> None:
    assert Page(view)["weir_config_last_reload_successful"] == 1
    config = view.effective.config
    view.effective.record(
        ReloadResult(5_000.0, config, problems=(Problem("quotas.enforce", "is not a boolean", "use true or false"),))
    )
    assert Page(view)["weir_config_last_reload_successful"] == 0
    view.effective.record(ReloadResult(6_000.0, config))
    assert Page(view)["weir_config_last_reload_successful"] == 1


def test_config_has_metrics(view: AdminView) -> None:
    page = Page(view)
    assert page["weir_quota_enforced"] == 1
    assert page["weir_config_version"] == 1
    assert page.get("weir_config_reloads_total", result="success") == 0
    assert page.get("weir_config_reloads_total", result="failure") == 0
    config = view.effective.config
    relaxed = config.model_copy(update={"quotas": config.quotas.model_copy(update={"enforce": False})})
    view.effective.record(ReloadResult(5_000.0, relaxed, changes=("quotas.enforce: true -> false",)))
    page = Page(view)
    assert page["weir_quota_enforced"] == 0
    assert page["weir_config_version"] == 2
    assert page["weir_config_last_reload_success_timestamp_seconds"] == 5_000.0
    assert page.get("weir_config_reloads_total", result="success") == 1


def test_process_and_build_have_metrics(view: AdminView) -> None:
    page = Page(view)
    assert page["process_resident_memory_bytes"] > 0
    assert [value for (name, _), value in page.samples.items() if name == "weir_build_info"] == [1]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_type_help_and_valid_name(view: AdminView, metric) -> None:
    family = at_once(metric.family(scraped(view)))
    assert family.documentation.endswith((".", "version"))
    assert metric.name.startswith("weir_")
    assert metric.name.endswith("_total") == (family.type == "counter")


def test_open_metrics_is_sent_on_request(view: AdminView) -> None:
    page = Page(view, OPEN_METRICS)
    assert page.content_type.startswith("application/openmetrics-text")
    assert page.text.endswith("# EOF\n")
    plain = Page(view)
    assert plain.content_type.startswith("text/plain")
    weir = {key: value for key, value in plain.samples.items() if key[0].startswith("weir_")}
    assert {key: value for key, value in page.samples.items() if key[0].startswith("weir_")} == weir


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_page_in_steps_is_that_of_the_library(view: AdminView, accept: str) -> None:
    """Values of this process and of Python differ from moment to moment."""
    view = replace(view, engine=Rows(*(row(user=f"u{number}", rate=2.0 + number) for number in range(50))))

    class Whole(Collector):
        def collect(self) -> Iterable[Metric]:
            return [at_once(metric.family(scraped(view))) for metric in METRICS]

    encode, _ = choose_encoder(accept)
    page, whole = Page(view, accept).text.splitlines(), encode(Whole()).decode().splitlines()
    assert [line for line in page if "process_" not in line] == whole


class Rows:
    """An engine with given rows, such as names of hostile clients."""

    overflowed = 3

    def __init__(self, *rows: UsageRow) -> None:
        self._rows = list(rows)

    def small_quotas(self) -> dict[str, int]:
        return {}

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        yield
        return self._rows

    def throttle_totals(self) -> list:
        return []


def test_rows_with_same_labels_are_one_sample(view: AdminView) -> None:
    page = Page(replace(view, engine=Rows(row(rate=2.0), row(rate=7.0), row(kind="fetch"))))
    both = {"kind": "produce", "user": "u", "client_id": "c"}
    assert page.get("weir_quota_bytes_total", **both) == 20
    assert page.get("weir_quota_usage", **both) == 7.0
    assert page.get("weir_early_requests_total", **both) == 2
    assert page.get("weir_early_requests_total", **both | {"kind": "fetch"}) == 1
    assert page["weir_quota_overflowed_total"] == 3


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
@pytest.mark.parametrize(
    "name", ['"} 1\nweir_forged 1\n# ', "back\\slash", "\ud800 lone surrogate", "\x00\x1b[2J", "naïve ☃", "a" * 40_000]
)
def test_hostile_client_name_cannot_break_the_page(view: AdminView, name: str, accept: str) -> None:
    page = Page(replace(view, engine=Rows(row(client_id=name))), accept)
    assert page.get("weir_quota_usage", kind="produce", user="u", client_id=label(name)) == 1.0
    assert not page.has("weir_forged")
    assert len(page.text) < 40_000


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_carriage_return_in_names_ends_no_line(view: AdminView, accept: str) -> None:
    """Also in the later parts of a metric, which leave out lines that begin with a hash."""
    rows = [row(user=f"u{number}", client_id="a\r# b") for number in range(10)]
    page = Page(replace(view, engine=Rows(*rows)), accept)
    found = [page.get("weir_quota_usage", kind="produce", user=each.user, client_id="a\r# b") for each in rows]
    assert found == [1.0] * 10


def test_long_names_with_same_start_stay_distinct() -> None:
    one, two = label("a" * 1_000 + "b"), label("a" * 1_000 + "c")
    assert one != two
    assert max(len(one), len(two)) < 250


def test_apis_have_kafka_names() -> None:
    assert [api_name(key) for key in (0, 1, 18)] == ["Produce", "Fetch", "ApiVersions"]
    unknown = max(APIS) + 1
    assert api_name(unknown) == str(unknown)


def test_histogram_needs_one_count_more_than_bounds() -> None:
    assert Histogram((1.0, 2.0), (3, 4, 5), 20.0).buckets() == [("1.0", 3.0), ("2.0", 7.0), ("+Inf", 12.0)]
    with pytest.raises(ValueError, match="shorter"):
        Histogram(THROTTLE_BOUNDS, (1,), 1.0).buckets()


def test_topic_quotas_have_metrics(view: AdminView) -> None:
    assert not Page(view).has("weir_topics_rate")
    quotas = TopicQuotas(TopicSettings(1_000, {"hot": 400}, meter="window", window=Window(2, 1.0)), 1_000.0, own=OwnTopics())
    list_topics(quotas, {"hot": bytes(16), "cold": bytes(16)})
    quotas.throttled(quotas.appended(b"hot", 5_000, 1_000.0, by_id=False), 70)
    quotas.refused(b"hot", 9, "MESSAGE_TOO_LARGE", 1_000.0, by_id=False)
    page = Page(replace(view, features=[reported(TopicQuotasFeature, at_once(quotas.report(1_000.0)))]))
    per_topic = {name: page.get(f"weir_topic_{name}", topic="hot") for name in ("rate", "threshold", "rejected", "bytes_total")}
    assert per_topic == {"rate": 5_000, "threshold": 400, "rejected": 1, "bytes_total": 5_000}
    assert page.get("weir_topic_throttled_bytes_total", topic="hot") == 70
    assert page.get("weir_topic_throttled_requests_total", topic="hot") == 1
    assert page.get("weir_topic_refused_bytes_total", topic="hot", reason="MESSAGE_TOO_LARGE") == 9
    assert (page.get("weir_topic_threshold", topic="cold"), page.get("weir_topic_rejected", topic="cold")) == (600, 0)
    totals = [page[f"weir_topics_{name}"] for name in ("rate", "threshold", "default_threshold", "over")]
    assert totals == [5_000, 1_000, 600, 1]
