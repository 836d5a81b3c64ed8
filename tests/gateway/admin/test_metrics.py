"""The page of metrics, read with Prometheus's own parsers."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.metrics.clients import api_name
from gateway.admin.metrics.registry import METRICS, exposition
from gateway.admin.metrics.row import Histogram, label
from gateway.admin.metrics.scrape import Scrape
from gateway.admin.view import AdminView
from gateway.config.effective import ReloadResult
from gateway.config.problems import Problem
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.snapshot import THROTTLE_BOUNDS, UsageRow
from protocol.api_keys import APIS
from tests.gateway.conftest import Readiness

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
        body, self.content_type = exposition(Scrape.of(view), accept)
        parse = open_metrics_families if "openmetrics" in self.content_type else text_string_to_metric_families
        self.text = body.decode()
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
        "throttle_seconds_total": 0.5,
        "early_total": 1,
        "early_seconds_total": 0.5,
        "early_seconds_max": 0.5,
        "throttle_left": 0.0,
        "connections": 1,
    }
    return UsageRow(kind, user, client_id, **{**values, **totals, **changes})  # type: ignore[arg-type]


def test_buckets(view: AdminView) -> None:
    page = Page(view)
    alice = {"kind": "produce", "user": "alice", "client_id": "etl"}
    bob = {"kind": "produce", "user": "bob", "client_id": "app"}
    assert page.get("weir_quota_bytes_total", **alice) == 1_300_000
    assert page.get("weir_quota_limit", **alice) == 100_000
    assert page.get("weir_quota_tokens", **alice) == pytest.approx(-300_000)
    assert page.get("weir_throttled_requests_total", **alice) == 1
    assert page.get("weir_throttle_seconds_total", **alice) == pytest.approx(3.0)
    assert page.get("weir_early_requests_total", user="alice", client_id="etl") == 2
    assert page.get("weir_early_request_seconds_total", user="alice", client_id="etl") == 2.0
    assert page.get("weir_quota_bytes_total", **bob) == 200_000
    assert page.get("weir_throttled_requests_total", **bob) == 0
    used, limit = page.get("weir_quota_usage", **bob), page.get("weir_quota_limit", **bob)
    assert page.get("weir_quota_used_ratio", **bob) == pytest.approx(used / limit)


def test_a_bucket_without_a_limit_has_usage_but_no_limit_ratio_or_tokens(view: AdminView) -> None:
    page = Page(view)
    names = {name for name, labels in page.samples if {("kind", "fetch"), ("client_id", "app")} <= labels}
    assert {"weir_quota_bytes_total", "weir_quota_usage"} <= names
    assert names.isdisjoint({"weir_quota_limit", "weir_quota_used_ratio", "weir_quota_tokens"})


def test_an_address_has_a_label_of_its_own_which_nobody_else_has(view: AdminView, engine: QuotaEngine) -> None:
    quota = EntityQuota(ClientQuotaEntity(ip="10.0.0.9"), {"connection_creation_rate": 5})
    engine.apply(QuotaSettings((quota,)), view.monotonic())
    bucket = engine.acquire_ip("connection", "10.0.0.9", view.monotonic())
    assert bucket is not None
    for _ in range(51):
        bucket.enter(1.0, view.monotonic())
    page = Page(view)
    address = {"kind": "connection", "user": "", "client_id": "", "ip": "10.0.0.9"}
    assert page.get("weir_quota_limit", **address) == 5
    assert page.get("weir_throttled_requests_total", **address) == 1
    assert not any(("ip", "") in labels for _, labels in page.samples)
    assert not page.has("weir_early_requests_total", user="", client_id="")


def test_small_quotas_are_counted_wherever_they_are_from(view: AdminView, engine: QuotaEngine) -> None:
    file = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 100, "consumer_byte_rate": 10**9})
    dynamic = {ClientQuotaEntity("bob"): {"producer_byte_rate": 100.0, "request_percentage": 1.0}}
    engine.apply(QuotaSettings((file,), dynamic), view.monotonic())
    page = Page(view)
    assert page.get("weir_small_quotas", kind="produce") == 2
    assert page.get("weir_small_quotas", kind="fetch") == 0
    assert not page.has("weir_small_quotas", kind="connection")


def test_listeners(view: AdminView) -> None:
    page = Page(view)
    assert page.get("weir_listener_connections", listener="clients") == 3
    assert page.get("weir_listener_max_connections", listener="clients") == 10
    assert not page.has("weir_listener_max_connections", listener="others")
    assert page.get("weir_accept_throttle_seconds_total", listener="others") == 0
    assert page["weir_held_connections"] == 0


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
    # A latency in slot i is below 2**i / 2**20 seconds: each stands at the first bound that is not below that.
    assert buckets[2**8 / 2**20] == 1
    assert buckets[2**10 / 2**20] == 2
    assert buckets[2**26 / 2**20] == 2
    assert buckets[float("inf")] == 3
    assert page.get("weir_request_seconds_sum", api="Produce") == pytest.approx(100.0011)
    assert not page.has("weir_request_seconds_count", api="Fetch")


def test_every_latency_is_in_a_bucket(view: AdminView) -> None:
    for slots in view.counters.latency:
        for slot in range(len(slots)):
            slots[slot] = 1
    page = Page(view)
    slots = view.counters.latency[0]
    assert page.get("weir_request_seconds_bucket", api="Produce", le="+Inf") == len(slots)
    assert page.get("weir_request_seconds_bucket", api="Produce", le=str(2**20 / 2**20)) == 21
    assert {name for name, _ in page.samples if "request_seconds" in name}


def test_connections_requests_and_errors(view: AdminView) -> None:
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


def test_what_is_worth_an_alert_when_it_first_happens_begins_at_0(view: AdminView) -> None:
    page = Page(view)
    assert page.get("weir_connections_rejected_total", reason="broker_unreachable") == 0
    assert page.get("weir_protocol_errors_total", reason="internal") == 0
    assert page.get("weir_tls_reloads_total", result="failure") == 0
    view.counters.protocol_errors["internal"] += 1
    assert Page(view).get("weir_protocol_errors_total", reason="internal") == 1


def test_readiness_is_that_of_readyz(view: AdminView, readiness: Readiness) -> None:
    assert Page(view)["weir_ready"] == 1
    readiness.reason = "draining"
    assert Page(view)["weir_ready"] == 0


def test_the_last_reload_decides_whether_the_config_is_the_file_s(view: AdminView) -> None:
    assert Page(view)["weir_config_last_reload_successful"] == 1
    config = view.effective.config
    view.effective.record(
        ReloadResult(5_000.0, config, problems=(Problem("quotas.enforce", "is not a boolean", "use true or false"),))
    )
    assert Page(view)["weir_config_last_reload_successful"] == 0
    view.effective.record(ReloadResult(6_000.0, config))
    assert Page(view)["weir_config_last_reload_successful"] == 1


def test_the_config(view: AdminView) -> None:
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


def test_the_process_and_the_build(view: AdminView) -> None:
    page = Page(view)
    assert page["process_resident_memory_bytes"] > 0
    assert [value for (name, _), value in page.samples.items() if name == "weir_build_info"] == [1]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_a_type_a_help_and_prometheus_own_style_of_name(view: AdminView, metric) -> None:
    family = metric.family(Scrape.of(view))
    assert family.documentation.endswith((".", "version"))
    assert metric.name.startswith("weir_")
    assert metric.name.endswith("_total") == (family.type == "counter")


def test_open_metrics_is_spoken_to_who_asks_for_it(view: AdminView) -> None:
    page = Page(view, OPEN_METRICS)
    assert page.content_type.startswith("application/openmetrics-text")
    assert page.text.endswith("# EOF\n")
    plain = Page(view)
    assert plain.content_type.startswith("text/plain")
    weir = {key: value for key, value in plain.samples.items() if key[0].startswith("weir_")}
    assert {key: value for key, value in page.samples.items() if key[0].startswith("weir_")} == weir


class Rows:
    """An engine of which only the rows matter here: names that the real one gets from hostile clients."""

    overflowed = 3

    def __init__(self, *rows: UsageRow) -> None:
        self._rows = list(rows)

    def small_quotas(self) -> dict[str, int]:
        return {}

    def snapshot(self, now: float) -> list[UsageRow]:
        return self._rows

    def throttle_totals(self) -> list:
        return []


def test_rows_with_the_same_labels_are_one_sample(view: AdminView) -> None:
    page = Page(replace(view, engine=Rows(row(rate=2.0), row(rate=7.0), row(kind="fetch"))))
    both = {"kind": "produce", "user": "u", "client_id": "c"}
    assert page.get("weir_quota_bytes_total", **both) == 20
    assert page.get("weir_quota_usage", **both) == 7.0
    assert page.get("weir_early_requests_total", user="u", client_id="c") == 3
    assert page["weir_quota_overflowed_total"] == 3


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
@pytest.mark.parametrize(
    "name", ['"} 1\nweir_forged 1\n# ', "back\\slash", "\ud800 lone surrogate", "\x00\x1b[2J", "naïve ☃", "a" * 40_000]
)
def test_a_name_chosen_by_a_hostile_client_can_not_break_the_page(view: AdminView, name: str, accept: str) -> None:
    page = Page(replace(view, engine=Rows(row(client_id=name))), accept)
    assert page.get("weir_quota_usage", kind="produce", user="u", client_id=label(name)) == 1.0
    assert not page.has("weir_forged")
    assert len(page.text) < 40_000


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, two = label("a" * 1_000 + "b"), label("a" * 1_000 + "c")
    assert one != two
    assert max(len(one), len(two)) < 250


def test_apis_have_kafkas_names() -> None:
    assert [api_name(key) for key in (0, 1, 18)] == ["Produce", "Fetch", "ApiVersions"]
    unknown = max(APIS) + 1
    assert api_name(unknown) == str(unknown)


def test_a_histogram_needs_a_count_for_each_bound_and_one_more() -> None:
    assert Histogram((1.0, 2.0), (3, 4, 5), 20.0).buckets() == [("1.0", 3.0), ("2.0", 7.0), ("+Inf", 12.0)]
    with pytest.raises(ValueError, match="shorter"):
        Histogram(THROTTLE_BOUNDS, (1,), 1.0).buckets()


def test_topic_quotas(view: AdminView) -> None:
    assert not Page(view).has("weir_topics_rate")
    quotas = TopicQuotas(TopicSettings(1_000, {"hot": 400}, meter="window", window=Window(2, 1.0)), 1_000.0)
    quotas.listed({"hot": bytes(16), "cold": bytes(16)})
    quotas.throttled(quotas.appended(b"hot", 5_000, 1_000.0, by_id=False), 70)
    quotas.refused(b"hot", 9, "MESSAGE_TOO_LARGE", 1_000.0, by_id=False)
    page = Page(replace(view, topics=lambda: quotas.report(1_000.0)))
    per_topic = {name: page.get(f"weir_topic_{name}", topic="hot") for name in ("rate", "threshold", "rejected", "bytes_total")}
    assert per_topic == {"rate": 5_000, "threshold": 400, "rejected": 1, "bytes_total": 5_000}
    assert page.get("weir_topic_throttled_bytes_total", topic="hot") == 70
    assert page.get("weir_topic_throttled_requests_total", topic="hot") == 1
    assert page.get("weir_topic_refused_bytes_total", topic="hot", reason="MESSAGE_TOO_LARGE") == 9
    assert (page.get("weir_topic_threshold", topic="cold"), page.get("weir_topic_rejected", topic="cold")) == (600, 0)
    totals = [page[f"weir_topics_{name}"] for name in ("rate", "threshold", "default_threshold", "over")]
    assert totals == [5_000, 1_000, 600, 1]
