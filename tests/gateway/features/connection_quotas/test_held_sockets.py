import io

from gateway.features.connection_quotas.held_sockets import HeldSockets


def test_each_is_closed_at_its_own_time_whatever_the_order_in_which_they_came():
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


def test_beyond_the_bound_nobody_is_held():
    held = HeldSockets(2)
    first, second, third = io.BytesIO(), io.BytesIO(), io.BytesIO()
    assert [held.hold(each, 1.0) for each in (first, second, third)] == [True, True, False]
    assert not third.closed  # the caller's to close
    held.close_due(1.0)
    assert held.hold(third, 2.0)
    held.close_all()
    assert (third.closed, len(held)) == (True, 0)
