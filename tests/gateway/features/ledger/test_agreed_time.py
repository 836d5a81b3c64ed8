"""The time on which the clock readings of the last hour agree."""

from gateway.features.ledger.files import AGREED_SECONDS, AgreedTime

WALL = 1_767_225_600.0
EVERY = 300.0
DAY = 86_400.0


def looks(wall_ahead):
    """Return the agreed time after each reading, one every 300 s, with a wall clock that is ahead by these seconds."""
    agreed = AgreedTime()
    return [agreed.look(number * EVERY, WALL + number * EVERY + ahead) for number, ahead in enumerate(wall_ahead)]


def test_time_is_uncertain_for_the_first_hour():
    found = looks([0.0] * 20)
    first = int(AGREED_SECONDS / EVERY)
    assert found == [None] * first + [WALL + number * EVERY for number in range(first, 20)]


def test_single_reading_ahead_changes_nothing():
    assert looks([*[0.0] * 15, 31 * DAY, *[0.0] * 4])[12:] == looks([0.0] * 20)[12:]


def test_clock_that_stays_ahead_is_trusted_after_an_hour():
    found = looks([*[0.0] * 13, *[DAY] * 14])
    assert found[13:25] == [WALL + number * EVERY for number in range(13, 25)]
    assert found[25] == WALL + 25 * EVERY + DAY


def test_clock_set_back_is_trusted_at_once():
    assert looks([*[0.0] * 13, -DAY])[13] == WALL + 13 * EVERY - DAY
