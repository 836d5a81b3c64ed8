"""The turns of connections that are gone, and their use by later connections."""

import pytest

from gateway.quotas.first_requests import KEPT_SECONDS, MAX_KEPT_TURNS, FirstRequests
from gateway.quotas.line import LONGEST_TURN_SECONDS, LOOK_SECONDS

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


def test_arrival_keeps_others_waiting_until_it_ends():
    requests = FirstRequests()
    arrives_by = requests.begin_arrival(100, START)
    requests.waiting += 50
    requests.leave(50)
    assert (requests.waiting, arrives_by) == (100, START + LOOK_SECONDS)
    assert [requests.arriving(now) for now in (START, arrives_by)] == [True, False]
    requests.leave(100, arrives_by)
    assert (requests.waiting, requests.arriving(START)) == (0, False)


def test_end_of_an_arrival_leaves_a_later_one():
    requests = FirstRequests()
    earlier = requests.begin_arrival(100, START)
    later = requests.begin_arrival(200, earlier)
    requests.leave(100, earlier)
    assert (requests.waiting, requests.arriving(earlier)) == (200, True)
    requests.leave(200, later)
    assert (requests.waiting, requests.arriving(earlier)) == (0, False)
