"""The states of the request direction: the table, and the reasons that pause each state."""

import pytest

from gateway.proxy.states import (
    CLIENT_UNREAD,
    HANDLER,
    MUTED,
    PAUSED_BY,
    REQUEST_TRANSITIONS,
    IllegalEventError,
    RequestDirection,
    RequestEvent,
    RequestState,
)

S, E = RequestState, RequestEvent


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("event", RequestEvent)
def test_only_transitions_of_the_table_are_legal(state, event):
    direction = RequestDirection()
    direction.state = state
    if (state, event) in REQUEST_TRANSITIONS:
        direction.fire(event)
        assert direction.state is REQUEST_TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalEventError, match=f"{event.name} in state {state.name}"):
            direction.fire(event)


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


def test_each_state_says_which_reasons_pause_it():
    assert set(PAUSED_BY) == set(RequestState)


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


def test_half_closed_direction_forgets_its_reasons():
    direction = RequestDirection()
    direction.pause(MUTED)
    direction.fire(E.DRAIN)
    direction.fire(E.HALF_CLOSE)
    direction.pause(MUTED)
    assert (direction.reasons, direction.may_retry) == (0, False)
