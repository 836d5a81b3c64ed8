"""What else happens becomes an event of its own."""

import pytest

from gateway.config.effective import ReloadResult
from gateway.config.load import parse_config
from gateway.events import ConfigApplied, ConnectionRejected, Event, QuotaChanged, VolumeStateChanged
from gateway.features.ledger.notes import MAX_REJECTIONS, Notes
from gateway.features.volume_quotas.rules import Verdict, VolumeState
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from tests.gateway.conftest import CONFIG, WALL

ALICE, REST = ClientQuotaEntity("alice"), ClientQuotaEntity(DEFAULT, "etl")
MS = 1_767_225_600_250


@pytest.fixture
def noted() -> list[Event]:
    return []


@pytest.fixture
def notes(noted: list[Event]) -> Notes:
    return Notes("weir-1", noted.append, lambda: WALL)


def test_file_quota_changes_are_noted(notes, noted):
    before = [
        EntityQuota(ALICE, {"producer_byte_rate": 1, "consumer_byte_rate": 2}),
        EntityQuota(REST, {"producer_byte_rate": 3}),
    ]
    after = [EntityQuota(ALICE, {"producer_byte_rate": 5, "consumer_byte_rate": 2})]
    notes.file_changed(before, after)
    assert [(each.kind, each.quota, each.old_limit, each.new_limit, each.source) for each in noted] == [
        ("produce", "user=alice", 1, 5, "file"),
        ("produce", "user=<default>, client-id=etl", 3, None, "file"),
    ]
    assert [(each.user, each.client_id) for each in noted] == [("alice", None), ("<default>", "etl")]


def test_api_quota_change_is_noted(notes, noted):
    notes.quota_changed(ALICE, "consumer_byte_rate", None, 7.0, "User:admin")
    notes.quota_changed(ALICE, "consumer_byte_rate", 7.0, 7.0, "User:admin")
    notes.quota_changed(ALICE, "request_percentage", None, 7.0, "User:admin")
    (change,) = noted
    assert isinstance(change, QuotaChanged)
    assert (change.time_ms, change.gateway, change.kind) == (MS, "weir-1", "fetch")
    assert (change.source, change.principal) == ("api", "User:admin")


def test_reload_is_noted(notes, noted):
    config = parse_config(CONFIG, source="weir.yaml")
    notes.reloaded(ReloadResult(WALL, config, ("quotas.enforce: true -> false",)), 2)
    assert noted == [
        ConfigApplied(
            time_ms=MS, gateway="weir-1", result="success", config_version="2", changes=("quotas.enforce: true -> false",)
        )
    ]


def test_volume_state_change_is_noted(notes, noted):
    notes.volumes_changed(Verdict(VolumeState.OPEN, 0.0), Verdict(VolumeState.THROTTLE, 0.25), enforced=False)
    (change,) = noted
    assert isinstance(change, VolumeStateChanged)
    assert not change.enforced
    assert (change.previous, change.state, change.factor, change.reason) == ("OPEN", "THROTTLE", 0.75, "soft_limit")


def test_rejections_are_folded(notes, noted):
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        notes.rejected("max_per_ip", address, "clients")
    assert noted == []
    assert list(notes.take_rejections()) == [
        ConnectionRejected(
            time_ms=MS, last_ms=MS, gateway="weir-1", reason="max_per_ip", address=address, listener="clients", count=count
        )
        for address, count in (("10.0.0.1", 2), ("10.0.0.2", 1))
    ]
    assert list(notes.take_rejections()) == []


def test_rejections_over_limit_are_counted(notes):
    for number in range(MAX_REJECTIONS + 3):
        notes.rejected("max_per_ip", str(number), "clients")
    notes.rejected("max_per_ip", "0", "clients")
    assert notes.dropped == 3
    assert sum(event.count for event in notes.take_rejections()) == MAX_REJECTIONS + 1
