"""The bound on the mutes of a connection that keeps a member in its group, as a table of moments."""

from math import inf

import pytest

from gateway.proxy.membership import Membership

NOW = 1_000.0
SESSIONS = {"shortest": 6.0, "old default": 10.0, "default": 45.0, "long": 600.0}


def member(session):
    membership = Membership()
    membership.beat(NOW)
    membership.accepted(session, NOW)
    return membership


def test_connection_without_members_is_muted_for_any_time():
    membership = Membership()
    membership.beat(NOW)
    assert membership.longest_mute(NOW) == inf
    assert not membership.take_free_heartbeat(NOW)


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_mute_after_a_heartbeat_ends_within_a_third(session):
    membership = member(session)
    assert membership.longest_mute(NOW) == pytest.approx(session / 3)
    assert membership.longest_mute(NOW + session / 6) == pytest.approx(session / 6)


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_mutes_are_short_while_a_heartbeat_is_due(session):
    membership = member(session)
    for late in (0.34, 0.5, 0.9):
        assert membership.longest_mute(NOW + late * session) == pytest.approx(min(session / 12, 1.0))


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_heartbeat_behind_seven_requests_arrives_in_time(session):
    """Each of the requests in front of the heartbeat goes over the rate, and mutes as long as it may."""
    membership, now = member(session), NOW
    for _ in range(8):
        now += membership.longest_mute(now)
    assert now - NOW < session


@pytest.mark.parametrize(("session", "third"), [(None, 2.0), (0.001, 2.0), (1e9, 600.0)])
def test_session_timeout_is_bounded(session, third):
    assert member(session).longest_mute(NOW) == pytest.approx(third)


def test_shortest_known_session_of_a_connection_counts():
    membership = member(45.0)
    membership.accepted(9.0, NOW)
    membership.accepted(30.0, NOW)
    membership.accepted(None, NOW)
    assert membership.longest_mute(NOW) == pytest.approx(3.0)


def test_unknown_session_timeout_becomes_known():
    membership = member(None)
    membership.accepted(45.0, NOW)
    assert membership.longest_mute(NOW) == pytest.approx(15.0)


def test_proof_of_a_member_ends_after_five_minutes():
    membership = member(45.0)
    assert membership.longest_mute(NOW + 299.0) < inf
    assert membership.longest_mute(NOW + 300.0) == inf
    assert member(600.0).longest_mute(NOW + 599.0) < inf


def test_one_heartbeat_a_second_is_free():
    membership = member(45.0)
    moments = [NOW + step / 4 for step in range(12)]
    assert [moment for moment in moments if membership.take_free_heartbeat(moment)] == [NOW, NOW + 1.0, NOW + 2.0]


def test_heartbeats_cost_again_once_the_proof_ends():
    assert member(45.0).take_free_heartbeat(NOW + 299.9)
    assert not member(45.0).take_free_heartbeat(NOW + 300.0)


def test_member_without_a_heartbeat_is_muted_briefly():
    membership = Membership()
    membership.accepted(45.0, NOW)
    assert membership.longest_mute(NOW) == 1.0
    membership.accepted_by_heartbeat(NOW)
    assert membership.longest_mute(NOW) == 0.5
