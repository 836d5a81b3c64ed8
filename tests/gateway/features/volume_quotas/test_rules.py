"""The state of the cluster: the strictest that any volume or missing data demands."""

import pytest

from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.rules import MAX_KNOWN_VOLUMES, ClusterVolumes, VolumeState

OPEN, THROTTLE, PAUSE = VolumeState.OPEN, VolumeState.THROTTLE, VolumeState.PAUSE
FRESHNESS = 300.0
SOFT, HARD = Limit(LimitType.CONSUMED_SPACE, 500), Limit(LimitType.CONSUMED_SPACE, 900)


def usage(broker, *consumed, at=0.0, **limits):
    volumes = tuple(Volume(f"/data-{index}", 1000, each, **limits) for index, each in enumerate(consumed))
    return VolumeUsage(broker, at, HARD, SOFT, volumes)


def cluster(*usages, active=None, when_unknown=PAUSE):
    volumes = ClusterVolumes(FRESHNESS, when_unknown)
    for each in usages:
        assert volumes.take_usage(each, age=0.0, now=0.0) is None
    volumes.take_brokers(frozenset(active if active is not None else (each.broker for each in usages)), 0.0)
    return volumes


@pytest.mark.parametrize(
    ("usages", "state", "throttle"),
    [
        ([usage(0, 100)], OPEN, 0.0),
        ([usage(0, 500), usage(1, 500)], OPEN, 0.0),
        ([usage(0, 100), usage(1, 700)], THROTTLE, 0.5),
        ([usage(0, 600, 800, 100), usage(1, 700)], THROTTLE, 0.75),
        ([usage(0, 100, 900), usage(1, 100)], PAUSE, 1.0),
        ([usage(0, 700), usage(1, 950)], PAUSE, 1.0),
        ([usage(0, 700, hard=Limit(LimitType.CONSUMED_SPACE, 700))], PAUSE, 1.0),
        ([usage(0, 700, soft=Limit(LimitType.CONSUMED_SPACE, 700))], OPEN, 0.0),
    ],
)
@pytest.mark.parametrize("when_unknown", [PAUSE, OPEN])
def test_fullest_volume_decides(usages, state, throttle, when_unknown):
    verdict = cluster(*usages, when_unknown=when_unknown).judge(1.0)
    assert (verdict.state, verdict.throttle) == (state, pytest.approx(throttle))
    assert verdict.factor == pytest.approx(1.0 - throttle)
    assert len(verdict.rows) == sum(len(each.volumes) for each in usages)
    assert not verdict.for_lack_of_data


@pytest.mark.parametrize(
    ("when_unknown", "known", "state", "lacking"),
    [
        (PAUSE, 100, PAUSE, True),
        (PAUSE, 700, PAUSE, True),
        (PAUSE, 950, PAUSE, False),
        (OPEN, 100, OPEN, False),
        (OPEN, 700, THROTTLE, False),
        (OPEN, 950, PAUSE, False),
    ],
)
def test_broker_without_data_gives_configured_state(when_unknown, known, state, lacking):
    verdict = cluster(usage(0, known), active=[0, 1], when_unknown=when_unknown).judge(1.0)
    assert (verdict.state, verdict.for_lack_of_data) == (state, lacking)
    assert verdict.unknown == ((1, "missing"),)
    assert "broker 1's usage is missing" in verdict.why
    assert "clock" not in verdict.why


def test_inactive_broker_is_ignored():
    assert cluster(usage(0, 100), usage(1, 950), active=[0]).judge(1.0).state is OPEN


def test_usage_is_stale_at_freshness_time():
    volumes = cluster(usage(0, 100), usage(1, 100))
    volumes.take_usage(usage(1, 100, at=200.0), age=0.0, now=200.0)
    volumes.take_brokers(frozenset({0, 1}), 299.0)
    assert volumes.judge(299.9).state is OPEN
    verdict = volumes.judge(300.0)
    assert (verdict.state, verdict.unknown, verdict.reason) == (PAUSE, ((0, "stale"),), "unknown")
    volumes.take_usage(usage(0, 100, at=301.0), age=1.0, now=302.0)
    assert volumes.judge(302.0).state is OPEN


@pytest.mark.parametrize(("age", "stale_at"), [(0.0, 300.0), (100.0, 200.0), (299.0, 1.0), (-50.0, 300.0)])
def test_age_of_received_usage_counts(age, stale_at):
    volumes = ClusterVolumes(FRESHNESS, PAUSE)
    volumes.take_brokers(frozenset({0}), 0.0)
    volumes.take_usage(usage(0, 100), age=age, now=0.0)
    volumes.take_brokers(frozenset({0}), stale_at)
    assert volumes.judge(stale_at - 0.1).state is OPEN
    assert volumes.judge(stale_at).state is PAUSE


def test_usage_received_too_late_is_stale():
    volumes = ClusterVolumes(FRESHNESS, PAUSE)
    volumes.take_brokers(frozenset({0}), 0.0)
    volumes.take_usage(usage(0, 100), age=FRESHNESS, now=0.0)
    verdict = volumes.judge(0.0)
    assert verdict.unknown == ((0, "stale"),)
    assert "this gateway's clock" in verdict.why


def test_outdated_broker_list_is_unknown():
    volumes = cluster(usage(0, 100))
    volumes.take_usage(usage(0, 100, at=250.0), age=0.0, now=250.0)
    assert volumes.judge(299.0).state is OPEN
    verdict = volumes.judge(300.0)
    assert (verdict.state, verdict.unknown) == (PAUSE, ((None, "the list of active brokers is not known"),))
    assert ClusterVolumes(FRESHNESS, OPEN).judge(0.0).state is OPEN


def test_older_usage_does_not_replace_newer():
    volumes = cluster(usage(0, 950, at=10.0))
    assert volumes.take_usage(usage(0, 100, at=9.0), age=2.0, now=1.0) == "outdated"
    assert volumes.judge(1.0).state is PAUSE


def test_usage_from_the_future_is_replaced_by_next():
    """The usage of a clock that was an hour ahead must not count until real time has caught up."""
    volumes = cluster(usage(0, 100, at=1000.0))
    assert volumes.take_usage(usage(0, 950, at=1010.0 + 3600.0), age=-3600.0, now=10.0) is None
    assert volumes.captured(0) == 1010.0
    assert volumes.judge(10.0).state is PAUSE
    assert volumes.take_usage(usage(0, 100, at=1009.0), age=1.0, now=10.0) == "outdated"
    assert volumes.take_usage(usage(0, 100, at=1011.0), age=0.1, now=11.1) is None
    assert volumes.judge(12.0).state is OPEN


def test_usage_replaces_that_of_a_clock_set_back():
    """Fresh usage must not count as outdated until the gateway's own clock has caught up."""
    volumes = cluster(usage(0, 950, at=3600.0))
    assert volumes.take_usage(usage(0, 100, at=30.0), age=0.1, now=30.0) is None
    assert volumes.judge(30.0).state is OPEN
    assert volumes.take_usage(usage(0, 950, at=29.0), age=1.2, now=30.1) == "outdated"


def test_usage_can_be_forgotten():
    volumes = cluster(usage(0, 100))
    volumes.forget(0)
    volumes.forget(7)
    assert volumes.judge(1.0).unknown == ((0, "missing"),)


INVENTED = [usage(100 + broker, 100) for broker in range(MAX_KNOWN_VOLUMES)]


def test_invented_brokers_leave_room_for_new_ones():
    volumes = cluster(usage(0, 100), *INVENTED[:-1], active=[0])
    volumes.take_brokers(frozenset({0, 1}), 1.0)
    assert volumes.take_usage(usage(1, 100), age=0.0, now=1.0) == "too_many_brokers", "the oldest invented one"
    assert volumes.judge(1.0).state is OPEN
    for each in INVENTED:
        volumes.take_usage(each, age=0.0, now=1.0)
    assert volumes.judge(1.0).state is OPEN
    assert volumes.take_usage(usage(1, 950), age=0.0, now=1.0) is None
    assert volumes.judge(1.0).state is PAUSE


def test_usage_before_its_broker_is_known_counts():
    volumes = cluster(*INVENTED, active=[0])
    volumes.take_usage(usage(0, 100), age=0.0, now=0.0)
    assert volumes.judge(1.0).state is OPEN


def test_remembered_volumes_are_bounded():
    volumes = cluster(active=[])
    skipped = [volumes.take_usage(usage(broker, *[100] * 1_000), age=0.0, now=0.0) for broker in range(15)]
    assert skipped == [None] * 10 + ["too_many_brokers"] * 5
    assert len(volumes.judge(1.0).rows) == MAX_KNOWN_VOLUMES
    volumes.forget(14)
    assert volumes.take_usage(usage(20, *[100] * 1_000), age=0.0, now=0.0) is None


def test_new_configuration_applies_at_once():
    volumes = cluster(usage(0, 100), active=[0, 1])
    assert volumes.judge(1.0).state is PAUSE
    volumes.configure(FRESHNESS, OPEN)
    assert volumes.judge(1.0).state is OPEN


@pytest.mark.parametrize("known", [100, 950])
def test_empty_broker_list_changes_nothing(known):
    volumes = cluster(usage(0, known))
    before = volumes.judge(1.0)
    volumes.take_brokers(frozenset(), 1.0)
    assert volumes.judge(1.0) == before
    assert volumes.judge(FRESHNESS).unknown == ((None, "the list of active brokers is not known"),)


def test_empty_first_broker_list_is_unknown():
    volumes = ClusterVolumes(FRESHNESS, PAUSE)
    volumes.take_brokers(frozenset(), 0.0)
    assert volumes.judge(0.0).state is PAUSE


def test_broker_leaves_only_after_freshness_time():
    volumes = cluster(usage(0, 100), usage(1, 950))
    volumes.take_brokers(frozenset({0}), 5.0)
    assert volumes.judge(5.0).state is PAUSE
    volumes.take_usage(usage(0, 100, at=299.0), age=0.0, now=299.0)
    volumes.take_brokers(frozenset({0}), 299.0)
    assert volumes.judge(299.9).state is PAUSE
    assert volumes.judge(300.0).state is OPEN


def test_broker_that_left_is_not_stale_before_it_expires():
    """The broker publishes every 30 s; its last usage is 25 s old when it leaves."""
    volumes = cluster(usage(0, 100), usage(1, 100))
    volumes.take_brokers(frozenset({0, 1}), 25.0)
    volumes.take_usage(usage(0, 100, at=299.0), age=0.0, now=299.0)
    volumes.take_brokers(frozenset({0}), 299.0)
    assert {volumes.judge(now).state for now in (300.0, 310.0, 324.9, 325.0)} == {OPEN}


def test_broker_that_left_while_stale_stays_unknown():
    volumes = cluster(usage(0, 100), usage(1, 100))
    volumes.take_usage(usage(0, 100, at=299.0), age=0.0, now=299.0)
    volumes.take_brokers(frozenset({0, 1}), 301.0)
    volumes.take_brokers(frozenset({0}), 302.0)
    assert volumes.judge(302.0).unknown == ((1, "stale"),)


def test_changed_freshness_applies_to_known_usage():
    volumes = cluster(usage(0, 100))
    volumes.configure(10.0, PAUSE)
    assert volumes.judge(9.9).state is OPEN
    assert volumes.judge(10.0).state is PAUSE
    volumes.configure(FRESHNESS, PAUSE)
    assert volumes.judge(299.9).state is OPEN


@pytest.mark.parametrize(("known", "state"), [(100, OPEN), (950, PAUSE)])
def test_full_disk_pauses_without_known_brokers(known, state):
    volumes = ClusterVolumes(FRESHNESS, OPEN)
    volumes.take_usage(usage(0, known), age=0.0, now=0.0)
    assert volumes.judge(299.9).state is state
    assert volumes.judge(300.0).state is OPEN


def test_ages_cover_active_brokers_with_usage():
    volumes = cluster(usage(0, 100), usage(1, 100), active=[0, 2])
    volumes.take_usage(usage(0, 100, at=5.0), age=1.0, now=6.0)
    assert volumes.ages(7.0) == {0: 2.0}
