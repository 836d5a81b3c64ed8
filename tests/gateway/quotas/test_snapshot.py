"""Episodes of throttles, and the texts of tables."""

import pytest

from gateway.quotas.snapshot import MAX_ADDRESSES, ThrottleEpisode, is_throttled, wait_text

START = 1_000.0


def test_no_episode_before_the_first_throttle():
    episode = ThrottleEpisode()
    assert (episode.seconds(START), episode.quiet(START)) == (None, None)
    assert not episode.lasted_beyond(0.0)


def test_episode_lasts_until_a_quiet_minute():
    episode = ThrottleEpisode()
    episode.throttled(5.0, START)
    episode.note_address("10.0.0.7")
    assert (episode.seconds(START + 3.0), episode.quiet(START + 3.0)) == (3.0, 0.0)
    assert (episode.seconds(START + 65.0), episode.quiet(START + 65.0)) == (65.0, 60.0)
    assert (episode.seconds(START + 65.5), episode.quiet(START + 65.5)) == (None, None)
    episode.throttled(1.0, START + 65.0)
    assert episode.seconds(START + 70.0) == 70.0
    assert list(episode.addresses) == ["10.0.0.7"]
    episode.throttled(1.0, START + 126.5)
    assert (episode.seconds(START + 127.0), list(episode.addresses)) == (0.5, [])


def test_shorter_throttle_ends_no_longer_one():
    episode = ThrottleEpisode()
    episode.throttled(5.0, START)
    episode.throttled(1.0, START + 1.0)
    assert episode.quiet(START + 6.0) == 1.0
    assert episode.lasted_beyond(START + 4.9)
    assert not episode.lasted_beyond(START + 5.0)


def test_latest_addresses_are_kept():
    episode = ThrottleEpisode()
    for number in range(MAX_ADDRESSES):
        episode.note_address(f"10.0.0.{number}")
    episode.note_address("10.0.0.0")
    assert len(episode.addresses) == MAX_ADDRESSES
    episode.note_address("10.0.1.1")
    assert list(episode.addresses) == [*(f"10.0.0.{number}" for number in range(2, MAX_ADDRESSES)), "10.0.0.0", "10.0.1.1"]


@pytest.mark.parametrize(
    ("left", "unthrottled", "throttled"),
    [(0.0, None, False), (0.001, None, True), (0.0, 0.0, True), (0.0, 4.9, True), (0.0, 5.0, False), (1.0, 9.0, True)],
)
def test_throttle_is_shown_for_five_more_seconds(left, unthrottled, throttled):
    assert is_throttled(left, unthrottled) is throttled


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "1 ms"), (0.0104, "10 ms"), (0.999, "999 ms"), (1.0, "1.0 s"), (61.26, "61.3 s")]
)
def test_short_waits_are_shown_in_milliseconds(seconds, text):
    assert wait_text(seconds) == text
