"""The states of the request direction: the table, and the reasons that pause each state."""

import pytest

from gateway.proxy.states import (
    CLIENT_UNREAD,
    HANDLER,
    IN_FLIGHT,
    MUTED,
    IllegalEventError,
    RequestDirection,
    RequestEvent,
    RequestState,
)
from tests.gateway.proxy.state_table import transitions

S, E = RequestState, RequestEvent


# "-" is an error.
TABLE = """
                  TAKE         DEFER        WAIT              RETRY    DRAIN             HALF_CLOSE   CLOSE
READING           READING      DEFERRED     WAITING           -        DRAINING          -            CLOSED
DEFERRED          -            -            -                 READING  DRAINING          -            CLOSED
WAITING           READING      DEFERRED     WAITING           -        DRAINING_WAITING  -            CLOSED
DRAINING          -            -            -                 -        -                 HALF_CLOSED  CLOSED
DRAINING_WAITING  DRAINING     DRAINING     DRAINING_WAITING  -        -                 -            CLOSED
HALF_CLOSED       HALF_CLOSED  HALF_CLOSED  -                 -        -                 -            CLOSED
CLOSED            -            CLOSED       -                 -        CLOSED            CLOSED       CLOSED
"""
EXPECTED = transitions(TABLE, S, E)


@pytest.mark.parametrize(("state", "event"), [(state, event) for state in S for event in E])
def test_only_transitions_of_the_table_are_legal(state, event):
    direction = RequestDirection()
    direction.state = state
    after = EXPECTED[state, event]
    if after is None:
        with pytest.raises(IllegalEventError, match=f"{event.name} in state {state.name}"):
            direction.fire(event)
        assert direction.state is state
    else:
        direction.fire(event)
        assert direction.state is after


@pytest.mark.parametrize("state", [state for state in S if state not in (S.HALF_CLOSED, S.CLOSED)])
def test_every_reason_pauses_every_open_state(state):
    for reason in (MUTED, IN_FLIGHT, CLIENT_UNREAD, HANDLER):
        direction = RequestDirection()
        direction.state = state
        direction.pause(reason)
        assert direction.reasons == reason
        assert not direction.may_retry
        assert not direction.open
        assert not direction.reads


def test_reasons_are_independent_bits():
    assert sorted([MUTED, IN_FLIGHT, CLIENT_UNREAD, HANDLER]) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("state", "waits", "may_retry"),
    [
        (S.READING, False, True),
        (S.DEFERRED, False, True),
        (S.WAITING, True, True),
        (S.DRAINING, False, False),
        (S.DRAINING_WAITING, True, True),
        (S.HALF_CLOSED, False, True),
        (S.CLOSED, False, False),
    ],
)
def test_held_request_of_each_state(state, waits, may_retry):
    direction = RequestDirection()
    direction.state = state
    assert (direction.waits_for_handler, direction.may_retry) == (waits, may_retry)


def test_direction_begins_open():
    direction = RequestDirection()
    assert (direction.state, direction.reasons, direction.open) == (S.READING, 0, True)
    direction.pause(MUTED)
    assert not direction.open
    direction.pause(0)
    assert direction.open


@pytest.mark.parametrize(
    ("events", "state", "open_then"),
    [
        ((E.TAKE,), S.READING, True),
        ((E.DEFER,), S.DEFERRED, False),
        ((E.DEFER, E.RETRY), S.READING, True),
        ((E.WAIT, E.WAIT, E.TAKE), S.READING, True),
        ((E.WAIT, E.DEFER, E.RETRY, E.TAKE), S.READING, True),
        ((E.WAIT, E.DRAIN, E.WAIT, E.TAKE, E.HALF_CLOSE, E.TAKE), S.HALF_CLOSED, False),
        ((E.WAIT, E.DRAIN, E.DEFER, E.HALF_CLOSE, E.CLOSE), S.CLOSED, False),
    ],
)
def test_life_of_a_direction(events, state, open_then):
    direction = RequestDirection()
    for event in events:
        direction.fire(event)
    assert (direction.state, direction.open) == (state, open_then)


def test_held_request_is_taken_up_once_no_reason_is_left():
    direction = RequestDirection()
    direction.fire(E.WAIT)
    direction.pause(HANDLER | CLIENT_UNREAD)
    assert not direction.may_retry
    direction.pause(CLIENT_UNREAD)
    assert not direction.may_retry
    direction.pause(0)
    assert direction.may_retry
    assert not direction.open


def half_closed():
    direction = RequestDirection()
    direction.pause(MUTED)
    direction.fire(E.DRAIN)
    direction.fire(E.HALF_CLOSE)
    return direction


def test_half_closed_direction_forgets_its_reasons():
    direction = half_closed()
    direction.pause(MUTED | IN_FLIGHT | CLIENT_UNREAD)
    assert (direction.reasons, direction.reads) == (0, True)


def test_closed_direction_only_notes_an_unread_client():
    direction = RequestDirection()
    direction.pause(CLIENT_UNREAD)
    direction.fire(E.CLOSE)
    direction.pause(direction.reasons | MUTED | IN_FLIGHT | HANDLER)
    assert (direction.reasons, direction.may_retry, direction.reads) == (CLIENT_UNREAD, False, False)
    direction.pause(0)
    assert (direction.reasons, direction.may_retry, direction.reads) == (0, False, False)


def test_half_closed_direction_waits_for_its_next_turn():
    direction = half_closed()
    direction.fire(E.DEFER)
    direction.pause(HANDLER)
    assert (direction.may_retry, direction.reads) == (False, False)
    direction.pause(0)
    assert (direction.may_retry, direction.reads) == (True, True)
