"""Shorter waits than a bucket's debt, for members of groups (`gateway.proxy.membership`). The debt itself stays."""

from typing import Final

from gateway.quotas.bucket import Bucket

MEMBERS_PER_SECOND: Final = 10
"""The members of groups that may come back while a bucket is in debt. A rate of requests may be smaller than that."""


def let_in(bucket: Bucket, turn: float, now: float) -> float:
    """The time at which a connection's first request passes, as a member of a group may come back with it. At most `turn`.

    At most `MEMBERS_PER_SECOND` such requests pass in spite of a debt, so that reconnecting gains little.
    """
    free = max(bucket.member_turn, now)
    if free >= turn:
        return turn
    bucket.member_turn = free + 1.0 / MEMBERS_PER_SECOND
    return free
