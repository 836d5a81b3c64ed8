import pytest

from gateway.proxy.authentication.sasl_states import TRANSITIONS, SaslEvent, SaslState, after
from protocol.errors import OutOfTurn
from tests.gateway.proxy.state_table import transitions

E, S = SaslEvent, SaslState

TABLE = """
                     ASK  TOKEN  AGREE  CHALLENGE  SUCCEED  SUCCEED_MAYBE  REFUSE
UNAUTHENTICATED      A    -      -      -          -        -              -
MECHANISM_ASKED      -    -      D      -          -        -              R
TOKEN_DUE            -    S      -      -          -        -              -
TOKEN_SENT           -    -      -      D          OK       MAYBE          R
MAYBE_AUTHENTICATED  A    S      -      -          -        -              -
AUTHENTICATED        A    -      -      -          -        -              -
REFUSED              A    -      -      -          -        -              -
"""
SHORT = {
    "A": S.MECHANISM_ASKED,
    "D": S.TOKEN_DUE,
    "S": S.TOKEN_SENT,
    "OK": S.AUTHENTICATED,
    "MAYBE": S.MAYBE_AUTHENTICATED,
    "R": S.REFUSED,
}
EXPECTED = transitions(TABLE, S, E, SHORT)


@pytest.mark.parametrize(("before", "event"), [(state, event) for state in S for event in E])
def test_each_event_in_each_sasl_state(before, event):
    wanted = EXPECTED[before, event]
    if wanted is None:
        with pytest.raises(OutOfTurn, match=f"{event.name} in SASL state {before.name}") as caught:
            after(before, event)
        assert caught.value.reason == "sasl_order"
    else:
        assert after(before, event) is wanted


def test_sasl_table_has_only_legal_transitions():
    assert {pair for pair, state in EXPECTED.items() if state is not None} == TRANSITIONS.keys()
