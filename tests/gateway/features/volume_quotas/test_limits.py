"""Limits of a volume: the point at which each type is reached, and the throttle from soft to hard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, over_hard, throttle_of

CONSUMED, FREE_BYTES, FREE_PERCENT = LimitType.CONSUMED_SPACE, LimitType.MIN_FREE_BYTES, LimitType.MIN_FREE_PERCENTAGE

LIMITS = [
    # type, soft, hard, consumed of 1000 -> throttle
    (CONSUMED, 500, 900, 0, 0.0),
    (CONSUMED, 500, 900, 500, 0.0),
    (CONSUMED, 500, 900, 501, 0.0025),
    (CONSUMED, 500, 900, 700, 0.5),
    (CONSUMED, 500, 900, 899, 0.9975),
    (CONSUMED, 500, 900, 900, 1.0),
    (CONSUMED, 500, 900, 1000, 1.0),
    (FREE_BYTES, 500, 100, 500, 0.0),
    (FREE_BYTES, 500, 100, 700, 0.5),
    (FREE_BYTES, 500, 100, 900, 1.0),
    (FREE_PERCENT, 50, 10, 500, 0.0),
    (FREE_PERCENT, 50, 10, 700, 0.5),
    (FREE_PERCENT, 50, 10, 899, 0.9975),
    (FREE_PERCENT, 50, 10, 900, 1.0),
    # With equal limits there is only open and paused.
    (FREE_PERCENT, 10, 10, 899, 0.0),
    (FREE_PERCENT, 10, 10, 900, 1.0),
    (FREE_PERCENT, 100, 100, 0, 1.0),
    # The limit exceeds the capacity.
    (FREE_BYTES, 3000, 2000, 0, 1.0),
    (FREE_PERCENT, 0, 0, 999, 0.0),
    (FREE_PERCENT, 0, 0, 1000, 1.0),
]


@pytest.mark.parametrize(("kind", "soft", "hard", "consumed", "throttle"), LIMITS)
def test_throttle_grows_linearly_from_soft_to_hard(kind, soft, hard, consumed, throttle):
    volume = Volume("/data", 1000, consumed)
    assert throttle_of(volume, Limit(kind, soft), Limit(kind, hard)) == pytest.approx(throttle)
    assert over_hard(volume, Limit(kind, hard)) == (throttle == 1.0)


def test_soft_and_hard_may_have_different_types():
    soft, hard = Limit(FREE_PERCENT, 50), Limit(FREE_BYTES, 100)
    assert throttle_of(Volume("/data", 1000, 700), soft, hard) == pytest.approx(0.5)
    # On a small volume this soft limit comes after the hard one.
    assert throttle_of(Volume("/data", 100, 0), soft, hard) == 1.0


@given(
    st.sampled_from(list(LimitType)),
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(1, 2**63 - 1),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_more_consumed_never_means_less_throttle(kind, one, two, capacity, shares):
    less, more = (Volume("/data", capacity, min(int(capacity * share), capacity)) for share in sorted(shares))
    soft, hard = Limit(kind, one), Limit(kind, two)
    assert 0.0 <= throttle_of(less, soft, hard) <= throttle_of(more, soft, hard) <= 1.0
