"""Failures in a row: which of them are logged."""

from gateway.cluster.log_status import LoggedCauses


def test_cause_is_logged_when_it_changes() -> None:
    causes = LoggedCauses()
    assert [causes.is_news(cause, 0.0) for cause in ("lost", "lost", "refused", "refused")] == [True, False, True, False]


def test_steady_cause_is_not_logged_again() -> None:
    causes = LoggedCauses()
    assert causes.is_news("lost", 0.0)
    assert not causes.is_news("lost", 1_000.0)


def test_causes_in_turn_are_logged_once_a_minute() -> None:
    causes = LoggedCauses()
    found = [(at, cause) for at in range(120) for cause in ("lost", "refused") if causes.is_news(cause, at)]
    assert found == [(0, "lost"), (0, "refused"), (60, "lost"), (60, "refused")]


def test_cause_that_stays_is_the_last_one_logged() -> None:
    causes = LoggedCauses()
    for cause in ("lost", "refused"):
        assert causes.is_news(cause, 0.0)
    assert [at for at in range(1, 100) if causes.is_news("lost", at)] == [60]


def test_failure_after_a_success_is_logged() -> None:
    causes = LoggedCauses()
    causes.is_news("lost", 0.0)
    causes.clear()
    assert causes.is_news("lost", 1.0)
