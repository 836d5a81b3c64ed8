"""The cluster's volumes and their state, as metrics and as JSON."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.admin.view import AdminView
from gateway.cluster.log_status import LinkStatus, LogStatus
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.feature import VolumeQuotas
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.report import VolumesReport
from gateway.features.volume_quotas.rules import ClusterVolumes, VolumeState, VolumeVerdict
from gateway.proxy.produce_gate import ProduceGate
from tests.gateway.admin.serving import visiting
from tests.gateway.admin.test_metrics import Page
from tests.gateway.conftest import reported

SOFT, HARD = Limit(LimitType.MIN_FREE_PERCENTAGE, 50), Limit(LimitType.MIN_FREE_PERCENTAGE, 10)


def verdict(*consumed: int, active: int) -> VolumeVerdict:
    """Brokers with a volume of 1000 bytes each and the given use. Further active brokers are unknown."""
    volumes = ClusterVolumes(300.0, VolumeState.PAUSE)
    volumes.take_brokers(frozenset(range(active)), 0.0)
    for broker, used in enumerate(consumed):
        volumes.take_usage(VolumeUsage(broker, 0.0, HARD, SOFT, (Volume("/data", 1000, used),)), 0.0, 0.0)
    return volumes.judge(1.0)


def report(found: VolumeVerdict) -> VolumesReport:
    gate = ProduceGate()
    gate.delay = 2.5
    gate.throttled_total, gate.refused_total, gate.deferred_total = 7, 8, 4
    gate.totals.note(17.5)
    log = LogStatus(
        reader=LinkStatus(problem="nobody answers"),
        publisher=LinkStatus(connected=True),
        records_total=9,
        published_total=5,
        publication_errors_total=1,
    )
    return VolumesReport(
        log=log,
        age=7.5,
        source_problem="",
        source_errors_total=2,
        verdict=found,
        config=VolumesConfig(),
        gate=gate,
        ages={0: 12.3456, 1: 250.0},
        skipped={"bad_json": 3},
    )


@pytest.fixture
def with_volumes(view: AdminView) -> Callable[[VolumeVerdict], AdminView]:
    return lambda found: replace(view, features=[reported(VolumeQuotas, report(found))])


@pytest.mark.parametrize("enforce", [True, False])
def test_metric_tells_enforced_volumes_from_measured_ones(view: AdminView, enforce: bool) -> None:
    found = replace(report(verdict(100, active=1)), config=VolumesConfig(enforce=enforce))
    assert Page(replace(view, features=[reported(VolumeQuotas, found)]))["weir_volume_enforced"] == enforce


def test_throttled_cluster_has_metrics(with_volumes: Callable[[VolumeVerdict], AdminView]) -> None:
    page = Page(with_volumes(verdict(100, 700, active=2)))
    states = {state: page.get("weir_volume_state", state=state) for state in ("OPEN", "THROTTLE", "PAUSE")}
    assert states == {"OPEN": 0, "THROTTLE": 1, "PAUSE": 0}
    assert page["weir_volume_factor"] == pytest.approx(0.5)
    assert (page["weir_volume_delay_seconds"], page["weir_volume_data_missing"]) == (2.5, 0)
    for name, value in (("capacity", 1000), ("consumed", 700), ("soft_limit", 500), ("hard_limit", 900)):
        assert page.get(f"weir_volume_{name}_bytes", broker="1", volume="/data") == value
    assert page.get("weir_volume_connected", role="reader") == 0
    assert page.get("weir_volume_connected", role="publisher") == 1
    assert (page["weir_volume_published_total"], page["weir_volume_publication_errors_total"]) == (5, 1)
    assert (page["weir_volume_messages_total"], page["weir_volume_source_errors_total"]) == (9, 2)
    assert [page.get("weir_volume_usage_age_seconds", broker=broker) for broker in ("0", "1")] == [12.3456, 250.0]
    assert page.get("weir_volume_freshness_seconds", when_unknown="PAUSE") == 300.0
    assert page["weir_volume_publication_age_seconds"] == 7.5
    assert page.get("weir_volume_messages_skipped_total", reason="bad_json") == 3
    results = {name: page.get("weir_volume_produce_requests_total", result=name) for name in ("delayed", "refused", "put_off")}
    assert results == {"delayed": 7, "refused": 8, "put_off": 4}
    assert page.get("weir_throttle_time_seconds_sum", kind="volume") == 17.5


def test_metrics_separate_missing_data_from_full_disk(with_volumes: Callable[[VolumeVerdict], AdminView]) -> None:
    page = Page(with_volumes(verdict(100, active=2)))
    assert page.get("weir_volume_state", state="PAUSE") == 1
    assert (page["weir_volume_data_missing"], page["weir_volume_unknown_brokers"]) == (1, 1)
    page = Page(with_volumes(verdict(950, active=1)))
    assert page.get("weir_volume_state", state="PAUSE") == 1
    assert (page["weir_volume_data_missing"], page["weir_volume_unknown_brokers"]) == (0, 0)


def test_metrics_are_absent_without_volumes(view: AdminView) -> None:
    assert not any(name.startswith("weir_volume") for name, _ in Page(view).samples)


async def test_volumes_api_shows_state(with_volumes: Callable[[VolumeVerdict], AdminView], view: AdminView) -> None:
    answers = []
    for shown in (with_volumes(verdict(700, active=2)), view):
        async with visiting(shown) as session, session.get("/api/volumes") as response:
            answers.append(await response.json())
    configured, absent = answers
    assert absent["configured"] is False
    assert (configured["state"], configured["factor"], configured["reason"]) == ("PAUSE", 0.0, "unknown")
    assert configured["unknown"] == [{"broker": 1, "usage": "missing"}]
    (volume,) = configured["volumes"]
    assert (volume["broker"], volume["volume"], volume["capacity_bytes"], volume["consumed_bytes"]) == (0, "/data", 1000, 700)
    assert volume["hard"] == {"type": "MinFreePercentage", "level": 10}
    assert volume["factor"] == pytest.approx(0.5)
    assert configured["reader"] == {"connected": False, "problem": "nobody answers"}
    assert configured["skipped"] == {"bad_json": 3}
    assert (configured["usage_age_seconds"], configured["freshness_seconds"]) == ({"0": 12.346, "1": 250.0}, 300.0)
