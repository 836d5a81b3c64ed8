"""Checks that each consumer of the registry finds the toy kind `spoon`. `test_contract.py` runs them."""

import json
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
from rich.console import Console

from gateway.admin.live import GatewaySnapshots
from gateway.admin.metrics.registry import exposition
from gateway.admin.table import quota_table
from gateway.admin.view import AdminView
from gateway.config.load import parse_config
from gateway.config.problems import ConfigError
from gateway.events import QuotaChanged, UsageSample, from_line, to_line
from gateway.features.ledger.minute_sampler import MINUTE
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.features.quota_api.rules import ListedQuotas, alteration, altered, described
from gateway.observer import Observer, Outlet
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.kinds import CLIENT_KINDS, KINDS, request_kinds
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from helm.dashboards import entity_dashboard
from helm.values_schema import values_schema
from protocol.api_keys import ApiKey
from protocol.bodies.client_quotas import AlterEntry, Component, EntityPart, Op
from tests.gateway.conftest import scraped
from tests.gateway.proxy import messages
from tests.gateway.proxy.transcript import Transcript
from tests.gateway.quotas.engines import bucket_of, rows_of

NOW, WALL = 1_000.0, 1_767_225_600.0
CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 29092}]
quotas: {entities: [{user: alice, spoon_rate: %s}]}
"""
ALICE = EntityQuota(ClientQuotaEntity("alice"), {"spoon_rate": 10.0})


@pytest.fixture
def engine() -> QuotaEngine:
    return QuotaEngine(QuotaSettings((ALICE,)), NOW)


@pytest.fixture
def bucket(engine: QuotaEngine) -> Bucket:
    """alice has used 150 teaspoons, of a burst of 100."""
    bucket = bucket_of(engine, "spoon", "alice", "app", NOW)
    bucket.charge(150, NOW)
    return bucket


@pytest.fixture
def spoon_view(view: AdminView, engine: QuotaEngine, bucket: Bucket) -> AdminView:
    return replace(view, engine=engine, monotonic=lambda: NOW)


def test_registry_knows_its_charge() -> None:
    assert KINDS["spoon"] in request_kinds(ApiKey.HEARTBEAT)
    assert KINDS["spoon"] not in request_kinds(ApiKey.METADATA)


def test_config_row_takes_its_key() -> None:
    config = parse_config(CONFIG % 10, source="weir.yaml")
    assert config.quotas.entities == (ALICE,)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_config_names_key_and_refuses_value(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(CONFIG % value, source="weir.yaml")
    assert [problem.key for problem in caught.value.problems] == ["quotas.entities[0].spoon_rate"]


def test_metrics_have_its_label(spoon_view: AdminView) -> None:
    page = b"".join(at_once(exposition(scraped(spoon_view), "text/plain"))[0]).decode()
    assert 'weir_quota_limit_teaspoons_per_second{client_id="",kind="spoon",user="alice"} 10.0' in page
    assert 'weir_throttled_requests_total{client_id="",kind="spoon",user="alice"} 1.0' in page
    assert 'weir_throttle_time_seconds_count{kind="spoon"} 1.0' in page
    assert 'weir_quota_bytes_total{client_id="",kind="spoon"' not in page


ENTITY = (EntityPart("user", "alice"),)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (7.0, None),
        (0.0, "Quota spoon_rate must be greater than 0"),
        (1.5, "spoon_rate cannot be a fractional value."),
        (1_001.0, "Proposed value for spoon_rate is too large for an INT."),
    ],
)
def test_quota_api_alters_it(value: float, error: str | None) -> None:
    found = alteration([AlterEntry(ENTITY, (Op("spoon_rate", value),))], lambda _: True)
    assert found.results[ENTITY].message == error
    if error is None:
        quotas = altered({}, found.changes)
        listed = ListedQuotas(quotas, (), QuotaTable())
        (answer,) = at_once(described(listed, [Component("user", 0, "alice")], strict=True))
        assert answer.values == (("spoon_rate", 7.0),)


async def test_live_page_is_sent_its_unit_and_sum(spoon_view: AdminView) -> None:
    picture = json.loads(json.dumps(await GatewaySnapshots(spoon_view).snapshot()))
    assert picture["kinds"]["spoon"] == {
        "title": "Spoon",
        "unit": "teaspoons",
        "prefixes": [],
        "in_overview": True,
    }
    assert picture["units"]["spoon"] == "teaspoons"
    assert picture["rates"]["spoon"] == pytest.approx(15.0)
    assert [row["kind"] for row in picture["throttled"]] == ["spoon"]


def test_table_has_a_row_for_it(engine: QuotaEngine, bucket: Bucket) -> None:
    console = Console(width=180, color_system=None)
    rows = [asdict(row) for row in rows_of(engine, NOW)]
    with console.capture() as capture:
        console.print(quota_table({"generated_at": "now", "enforce": True, "units": {}, "rows": rows}, 180))
    (line,) = [line for line in capture.get().splitlines() if "alice" in line]
    assert [cell.strip() for cell in line.split("│")[1:7]] == [
        "spoon",
        "alice",
        "",
        "15.0 teaspoons/s",
        "10.0 teaspoons/s",
        "━" * 20 + " 150%",
    ]


def test_debts_can_be_forgiven() -> None:
    assert "spoon" in CLIENT_KINDS


def test_ledger_has_its_events(bucket: Bucket) -> None:
    (sample,) = at_once(UsageSampler(WALL).take("weir-1", [bucket], WALL + MINUTE))
    read = from_line(to_line(sample))
    assert isinstance(read, UsageSample)
    assert (read.kind, read.user, read.amount, read.limit) == ("spoon", "alice", 150.0, 10.0)
    observer = Mock(spec=Observer)
    Outlet("weir-1", [observer], lambda: WALL).limit_changed(ALICE.entity, "spoon_rate", None, 10.0, "User:admin")
    (change,) = observer.notify.call_args.args
    assert isinstance(change, QuotaChanged)
    assert (change.kind, change.new_limit) == ("spoon", 10.0)


def test_reports_know_its_unit() -> None:
    pytest.importorskip("pyspark")
    from gateway.reports.job.overview import use_plots
    from gateway.reports.top_throttled import REPORT

    row = {"date": "2026-01-01", "hour": 0, "kind": "spoon", "amount": 7_200.0, "seconds": 3_600}
    (plot,) = use_plots([row])
    assert plot["layout"]["yaxis"]["title"]["text"] == "teaspoons per second"
    assert [(line["name"], line["y"]) for line in plot["data"]] == [("spoon", [2.0])]
    assert "teaspoons" in REPORT.columns["amount"]


def test_chart_schema_has_its_key() -> None:
    assert "spoon_rate" in values_schema()["$defs"]["EntityRow"]["properties"]


def test_dashboard_has_a_panel_for_its_unit() -> None:
    (panel,) = [panel for panel in entity_dashboard()["panels"] if panel["title"] == "Teaspoons per second"]
    assert all('kind="spoon"' in target["expr"] for target in panel["targets"])


def test_requests_of_its_api_are_charged_and_throttled() -> None:
    """Six Heartbeats cost 12 teaspoons, two more than the burst of ten seconds."""
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"spoon_rate": 1.0})
    t = Transcript(QuotaSettings((quota,)))
    t.client_sends(*map(messages.heartbeat, range(7)))
    t.broker_got(*map(messages.heartbeat, range(6)))
    t.broker_answers(*map(messages.beat, range(6)))
    t.client_got(*(messages.beat(number, throttle_time_ms=2_000) for number in range(6)))
    assert t.row("spoon").amount_total == 12
    t.passes(2.0)
    t.broker_got(messages.heartbeat(6))


def test_member_of_a_group_is_spared() -> None:
    """A member with a session timeout of 6 s is muted for 2 s at most, in spite of a debt of 100 s."""
    member = spoons_and_bytes(1_000_000.0)
    member.client_sends(messages.heartbeat(0))
    member.broker_answers(messages.beat(0))
    bucket_of(member.engine, "spoon", "ANONYMOUS", "etl", member.now).charge(110, member.now)
    member.client_sends(messages.heartbeat(1), messages.heartbeat(2))
    assert member.core.throttle.until - member.now == pytest.approx(2.0)


def spoons_and_bytes(byte_rate: float) -> Transcript:
    """A client with 1 teaspoon/s and a burst of ten, and `byte_rate` bytes/s with a burst of ten seconds."""
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"spoon_rate": 1.0, "producer_byte_rate": byte_rate})
    return Transcript(QuotaSettings((quota,)))


@pytest.mark.parametrize(("byte_rate", "seconds"), [(1_000_000.0, 2.0), (70.0, 2.0), (50.0, 6.0)])
def test_tighter_of_two_quotas_mutes_a_producer(byte_rate: float, seconds: float) -> None:
    """Six Produce requests cost 12 teaspoons and 800 bytes; the last one goes over."""
    t = spoons_and_bytes(byte_rate)
    t.client_sends(*(messages.produce(number, size=100) for number in range(5)), messages.produce(5, size=300))
    assert (t.row("spoon").amount_total, t.row("produce").amount_total) == (12, 800)
    assert t.core.throttle.until - t.now == pytest.approx(seconds)


@pytest.mark.parametrize("by", [13, 60, 103])
def test_a_produce_in_chunks_costs_one_message(by: int) -> None:
    t = spoons_and_bytes(1_000_000.0)
    t.client_sends(*(messages.produce(number, size=100) for number in range(6)), by=by)
    assert (t.row("spoon").amount_total, t.row("produce").amount_total) == (12, 600)
    assert t.core.throttle.until - t.now == pytest.approx(2.0)


def test_answers_are_timed_for_the_byte_quota_only() -> None:
    t = spoons_and_bytes(1_000_000.0)
    t.client_sends(*(messages.produce(number) for number in range(3)))
    t.broker_answers(*(messages.produced(number) for number in range(3)))
    assert {bucket.kind.name: bucket.answered_total for bucket in t.engine.buckets()} == {"produce": 3, "spoon": 0}


def test_first_request_of_a_new_connection_waits_for_debt() -> None:
    owing = spoons_and_bytes(1_000_000.0)
    owing.client_sends(*map(messages.heartbeat, range(6)))
    t = Transcript(engine=owing.engine)
    t.client_sends(messages.produce(1))
    t.broker_got()
    t.passes(2.0)
    t.broker_got(messages.produce(1))


def test_client_without_its_quota_has_no_bucket_of_it() -> None:
    t = Transcript()
    t.client_sends(messages.heartbeat(1), messages.produce(2))
    assert [bucket.kind.name for bucket in t.engine.buckets()] == ["produce"]
