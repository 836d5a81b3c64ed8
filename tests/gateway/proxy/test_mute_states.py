import pytest

from gateway.proxy.states import MUTE_TRANSITIONS, IllegalEventError, Mute, MuteEvent, MuteState
from tests.gateway.proxy.state_table import transitions

E, S = MuteEvent, MuteState

# Row by row from kafka-quotas.md §5.2; "-" is an error. An unmute that comes too early has no effect.
TABLE = """
                                          MUTE  REQUEST_RECEIVED  THROTTLE_STARTED  RESPONSE_SENT  THROTTLE_ENDED  UNMUTE
NOT_MUTED                                 M     -                 -                 -              -               N
MUTED                                     M     P                 -                 -              -               N
MUTED_AND_RESPONSE_PENDING                -     -                 TP                M              -               P
MUTED_AND_THROTTLED                       -     -                 -                 -              M               T
MUTED_AND_THROTTLED_AND_RESPONSE_PENDING  -     -                 -                 T              P               TP
"""
SHORT = {
    "N": S.NOT_MUTED,
    "M": S.MUTED,
    "P": S.MUTED_AND_RESPONSE_PENDING,
    "T": S.MUTED_AND_THROTTLED,
    "TP": S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
}
EXPECTED = transitions(TABLE, S, E, SHORT)


@pytest.mark.parametrize(("before", "event"), [(state, event) for state in S for event in E])
def test_each_event_in_each_mute_state(before, event):
    after = EXPECTED[before, event]
    mute = Mute()
    mute.state = before
    if after is None:
        with pytest.raises(IllegalEventError, match=f"{event.name} in state {before.name}"):
            mute.fire(event)
        assert mute.state is before
    else:
        assert mute.fire(event) is after
        assert mute.state is after


def test_mute_table_has_only_legal_transitions():
    assert {pair for pair, after in EXPECTED.items() if after is not None} == MUTE_TRANSITIONS.keys()


def test_connection_begins_unmuted():
    assert Mute().state is S.NOT_MUTED
