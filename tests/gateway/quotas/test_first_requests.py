"""The turns of connections that are gone, and their use by later connections."""

import pytest

from gateway.quotas.first_requests import KEPT_SECONDS, MAX_KEPT_TURNS, FirstRequests
from gateway.quotas.line import LONGEST_TURN_SECONDS

START = 1_000.0
DEBT = 50.0
LIMIT = 1_000.0


def test_new_turn_follows_the_debt_and_the_waiting_requests():
    requests = FirstRequests()
    assert requests.turn(DEBT, LIMIT, START) == START + DEBT
    requests.waiting = 2_000
    assert requests.turn(DEBT, LIMIT, START) == START + DEBT + 2.0
    requests.waiting = 10**9
    assert requests.turn(DEBT, LIMIT, START) == START + DEBT + LONGEST_TURN_SECONDS
    requests.leave(10**9)
    assert requests.waiting == 0


def test_kept_turn_is_taken_once():
    requests = FirstRequests()
    requests.keep(START + DEBT, START + 30.0)
    assert requests.turn(DEBT, LIMIT, START + 30.0) == START + DEBT
    assert requests.turn(DEBT, LIMIT, START + 30.0) == START + 30.0 + DEBT


def test_earliest_kept_turn_is_taken_first():
    requests = FirstRequests()
    for seconds in (30.0, 10.0, 20.0):
        requests.keep(START + seconds, START)
    assert [requests.turn(DEBT, LIMIT, START) - START for _ in range(4)] == [10.0, 20.0, 30.0, DEBT]


@pytest.mark.parametrize("left", [DEBT, DEBT + 1.0])
def test_kept_turn_after_a_new_one_stays(left):
    requests = FirstRequests()
    requests.keep(START + left, START)
    assert requests.turn(DEBT, LIMIT, START) == START + DEBT
    assert requests.turn(100.0, LIMIT, START) == START + left


@pytest.mark.parametrize(("late", "turn"), [(0.0, START), (0.001, START + KEPT_SECONDS + 0.001 + DEBT)])
def test_kept_turn_expires(late, turn):
    requests = FirstRequests()
    requests.keep(START, START)
    assert requests.turn(DEBT, LIMIT, START + KEPT_SECONDS + late) == turn


def test_latest_turns_beyond_the_maximum_are_forgotten():
    requests = FirstRequests()
    for number in reversed(range(MAX_KEPT_TURNS + 2)):
        requests.keep(START + number, START)
    turns = [requests.turn(1_000.0, LIMIT, START) - START for _ in range(MAX_KEPT_TURNS + 1)]
    assert turns == [*range(MAX_KEPT_TURNS), 1_000.0]


def test_expired_turns_leave_room():
    requests = FirstRequests()
    for _ in range(MAX_KEPT_TURNS):
        requests.keep(START, START)
    requests.keep(START + 100.0, START + 61.0)
    assert requests.turn(DEBT, LIMIT, START + 61.0) == START + 100.0
