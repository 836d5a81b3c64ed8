"""Shorter waits than a bucket's debt, for members of groups (`gateway.proxy.membership`). The debt itself stays."""

from typing import Final

from gateway.quotas.bucket import LEAST_DELAY, Bucket, QuotaVerdict

MEMBERS_PER_SECOND: Final = 10
"""The members of groups that may come back while a bucket is in debt. A rate of requests may be smaller than that."""


def shorten(bucket: Bucket, delay: float, shorter: float) -> None:
    """Correct the bucket's counters, as a client waits for a shorter time than its verdict says."""
    bucket.throttle_seconds_total += shorter - delay
    bucket.totals.correct(delay, shorter)


def let_in(bucket: Bucket, verdict: QuotaVerdict, now: float) -> QuotaVerdict:
    """Shorten the wait of a connection's first request, as a member of a group may come back with it.

    At most `MEMBERS_PER_SECOND` such requests pass in spite of a debt, so that reconnecting gains little.
    """
    if not verdict[1]:
        return verdict
    wait = max(bucket.member_turn - now, 0.0)
    latest = now + min(wait, verdict[0])
    turn = bucket.first_requests.member_turn(latest, now)
    if turn < latest:  # a member that is gone has left it
        wait = max(turn - now, 0.0)
    elif wait >= verdict[0]:
        return verdict
    else:
        bucket.member_turn = now + wait + 1.0 / MEMBERS_PER_SECOND
    shorten(bucket, verdict[0], wait)
    return (wait, True) if wait >= LEAST_DELAY else (0.0, False)
