"""When a worker that died is replaced."""

from gateway.backoff import LONG_LIFE_SECONDS, Backoff


def test_who_dies_at_the_start_is_replaced_later_and_later() -> None:
    backoff = Backoff()
    assert [backoff.seconds(0.1) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_has_lived_is_replaced_at_once_and_all_is_forgiven() -> None:
    backoff = Backoff()
    backoff.seconds(0.1)
    backoff.seconds(0.1)
    assert backoff.seconds(LONG_LIFE_SECONDS) == 0.0
    assert backoff.seconds(0.1) == 0.5
