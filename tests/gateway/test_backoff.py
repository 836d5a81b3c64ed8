"""When a worker that died is replaced."""

from gateway.backoff import LONG_LIFE_SECONDS, Backoff


def test_early_deaths_lengthen_the_backoff() -> None:
    backoff = Backoff()
    assert [backoff.seconds(0.1) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_long_life_resets_the_backoff() -> None:
    backoff = Backoff()
    backoff.seconds(0.1)
    backoff.seconds(0.1)
    assert backoff.seconds(LONG_LIFE_SECONDS) == 0.0
    assert backoff.seconds(0.1) == 0.5
