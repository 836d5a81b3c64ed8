import io

from gateway.features.connection_quotas.admission import HeldSockets


def test_held_sockets_close_in_order_of_their_times():
    held = HeldSockets(10)
    late, early = io.BytesIO(), io.BytesIO()
    assert held.hold(late, 3.0)
    assert held.hold(early, 1.0)
    assert held.close_due(0.5) == 1.0
    assert (early.closed, late.closed) == (False, False)
    assert held.close_due(1.0) == 3.0
    assert (early.closed, late.closed, len(held)) == (True, False, 1)
    assert held.close_due(4.0) is None
    assert (late.closed, len(held)) == (True, 0)


def test_full_hold_accepts_no_more_sockets():
    held = HeldSockets(2)
    first, second, third = io.BytesIO(), io.BytesIO(), io.BytesIO()
    assert [held.hold(each, 1.0) for each in (first, second, third)] == [True, True, False]
    assert not third.closed  # the caller's to close
    held.close_due(1.0)
    assert held.hold(third, 2.0)
    held.close_all()
    assert (third.closed, len(held)) == (True, 0)
